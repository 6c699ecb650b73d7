-- renew: prolong what a process holds.
--
-- KEYS[1]   index    KEYS[2]  fetching
-- ARGV[1]   lease    seconds
-- ARGV[2]   lists    how many members of `fetching` follow
-- ARGV[3..] those members, then tags
--
-- returns   the tags that are held no longer: their lease ran out and somebody put them back

redis.call('ZREM', KEYS[1], '')  -- after such a write the server lets a script write though its memory is full
local time = redis.call('TIME')
local expiry = string.format('%.3f', tonumber(time[1]) + tonumber(time[2]) / 1000000 + tonumber(ARGV[1]))
local lists = tonumber(ARGV[2])

for i = 3, 2 + lists do
    redis.call('ZADD', KEYS[2], expiry, ARGV[i])
end

local lost = {}
for i = 3 + lists, #ARGV do
    if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
        redis.call('ZADD', KEYS[1], expiry, ARGV[i])
    else
        lost[#lost + 1] = ARGV[i]
    end
end
return lost
