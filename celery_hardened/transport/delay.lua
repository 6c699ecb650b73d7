-- delay: deliveries whose time has not come wait for it in Redis.
--
-- KEYS[1]   unacked   KEYS[2]  index
-- ARGV      for each: its tag, the tag it waits under, seconds until it is due
--
-- returns   how many wait; the others had ended already

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local count = 0
for i = 1, #ARGV, 3 do
    local entry = redis.call('HGET', KEYS[1], ARGV[i])
    if entry then
        redis.call('HDEL', KEYS[1], ARGV[i])
        redis.call('ZREM', KEYS[2], ARGV[i])
        redis.call('HSET', KEYS[1], ARGV[i + 1], entry)
        redis.call('ZADD', KEYS[2], string.format('%.3f', now + tonumber(ARGV[i + 2])), ARGV[i + 1])
        count = count + 1
    end
end
return count
