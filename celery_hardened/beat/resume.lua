-- resume: end a pause.
--
-- KEYS[1]  paused  see pause.lua
-- KEYS[2]  stamp   counter of changes by tools
-- ARGV[1]  name    the schedule
--
-- returns  1

redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('INCR', KEYS[2])
return 1
