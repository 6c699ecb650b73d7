-- progress: a recorded start has come further than any start before it.
--
-- KEYS[1]  record  see deaths.lua
-- ARGV[1]  start   token of its delivery; it stays open
-- ARGV[2]  ttl_ms  how long deaths are remembered
--
-- returns  1
--
-- What killed the starts before it was not what it works on now, so they and the suspicion of
-- having died alone are forgotten. The message may come again with its old count on it, from a
-- retry or given back: that it carries none any more is written down.

local open = redis.call('HEXISTS', record, 'open:' .. ARGV[1]) == 1
redis.call('DEL', record)
redis.call('HSET', record, 'carried', 0)
if open then
    redis.call('HSET', record, 'open:' .. ARGV[1], 1)
end
redis.call('PEXPIRE', record, ARGV[2])
return 1
