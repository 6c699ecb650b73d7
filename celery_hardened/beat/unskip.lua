-- unskip: let a slot be fired after all.
--
-- KEYS[1]  skips  see skip.lua
-- KEYS[2]  stamp  counter of changes by tools
-- ARGV[1]  name   the schedule
-- ARGV[2]  slot   ms
--
-- returns  1; 0: that slot is not skipped, or a beat has passed over it already

local skip = redis.call('HGET', KEYS[1], ARGV[1])
if not skip or string.match(skip, '^(%d+) ') ~= ARGV[2] then
    return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('INCR', KEYS[2])
return 1
