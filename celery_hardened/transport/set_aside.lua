-- set_aside: a delivery that the worker could not read is kept as malformed.
--
-- KEYS[1]   unacked   KEYS[2]  index   KEYS[3]  malformed
-- ARGV[1]   tag
-- ARGV[2]   queue     as JSON
-- ARGV[3]   raw       the item as it was in the queue
--
-- returns   1 it is, 0 the delivery had ended already

if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
    return 0
end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2] .. '\n' .. ARGV[3])
return 1
