-- skip: have one slot of a schedule passed over. Another one that was to be is not any more.
--
-- KEYS[1]  skips    HASH schedule -> '<ms of the slot> <JSON>'
-- KEYS[2]  records  see steps.lua
-- KEYS[3]  stamp    counter of changes by tools
-- ARGV[1]  name     the schedule
-- ARGV[2]  record   its record as it was when the slot was not decided yet; '': none
-- ARGV[3]  slot     ms
-- ARGV[4]  text     JSON: by, why, at
-- ARGV[5]  ttl_ms   how long a skip is kept behind its slot, if no beat comes to pass over it
--
-- returns  1; 0: it has another record by now, and the slot may be decided. Nothing was changed

if (redis.call('HGET', KEYS[2], ARGV[1]) or '') ~= ARGV[2] then
    return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. ' ' .. ARGV[4])
local time = redis.call('TIME')
local now, ttl = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[5])
local last = 0
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
    local slot = tonumber(string.match(all[i + 1], '^(%d+) ')) or 0
    last = math.max(last, slot)
    if slot + ttl < now and all[i] ~= ARGV[1] then
        redis.call('HDEL', KEYS[1], all[i])
    end
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(last - now, 0) + ttl))
redis.call('INCR', KEYS[3])
return 1
