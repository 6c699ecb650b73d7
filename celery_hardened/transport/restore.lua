-- restore: put back a delivery that kombu's own transport made, as kombu would. What it holds was read
-- before and is compared now: kombu's own way, WATCH, can be retried for ever on a busy `unacked`.
--
-- KEYS[1]   unacked   KEYS[2]  index
-- ARGV[1]   tag
-- ARGV[2]   entry     as it was read
-- ARGV[3..] for each queue: its list, and the message
--
-- returns   1 it went back, 0 it had ended or changed

if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
    return 0
end
-- A key that is no list, or that this user may not write to, shows here, while nothing has been changed.
for i = 3, #ARGV, 2 do
    redis.call('LTRIM', ARGV[i], 0, -1)
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
for i = 3, #ARGV, 2 do
    redis.call('RPUSH', ARGV[i], ARGV[i + 1])
end
return 1
