-- pause: hold a schedule up. Pauses that have ended are dropped on the way.
--
-- KEYS[1]  paused  HASH schedule -> '<ms of the server's clock until when, 0: for ever> <JSON>'
-- KEYS[2]  stamp   counter of changes by tools
-- ARGV[1]  name    the schedule
-- ARGV[2]  until   ms, 0: until it is resumed
-- ARGV[3]  text    JSON: by, why, at, until
--
-- returns  1

redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
    local ends = tonumber(string.match(all[i + 1], '^(%d+) '))
    if ends and ends > 0 and ends <= now then
        redis.call('HDEL', KEYS[1], all[i])
    end
end
redis.call('INCR', KEYS[2])
return 1
