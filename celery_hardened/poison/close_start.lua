-- close_start: a recorded start has ended, in whatever way that is not a death.
--
-- KEYS[1]  record  see deaths.lua
-- ARGV[1]  start   token of its delivery
-- ARGV[2]  forget  1: it finished; nothing of the work need be remembered
--
-- returns  1
--
-- Whoever ended while alone in its worker is cleared of that suspicion.

if ARGV[2] == '1' then
    redis.call('DEL', record)
    return 1
end
redis.call('HDEL', record, 'open:' .. ARGV[1])
if redis.call('HGET', record, 'alone') == ARGV[1] then
    redis.call('HDEL', record, 'alone')
end
return 1
