-- end_deliveries: what they brought is done.
--
-- KEYS[1]   unacked   KEYS[2]  index
-- ARGV      tags
--
-- returns   how many there were

redis.call('ZREM', KEYS[2], unpack(ARGV))
return redis.call('HDEL', KEYS[1], unpack(ARGV))
