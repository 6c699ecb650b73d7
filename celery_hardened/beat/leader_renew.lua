-- leader_renew: the leader still lives; its lease begins anew.
--
-- KEYS[1]  leader   see leader.lua
-- KEYS[2]  term     see leader.lua
-- KEYS[3]  stamp    STRING, counts changes by tools
-- ARGV[1]  owner    token of its acquisition
-- ARGV[2]  ttl_ms   the lease
-- ARGV[3]  client   id of its connection, or ''
-- ARGV[4]  clock    what its clock said last, or '' if it has not said
-- ARGV[5]  idle_ms  how long ago its main loop was last known to live
-- ARGV[6]  keep_ms  how long the term is kept
--
-- returns  {1, server ms, stamp}; {0, server ms, stamp} if it does not lead any more

local now = server_ms()
local stamp = redis.call('GET', KEYS[3]) or '0'
if redis.call('HGET', leader, 'owner') ~= ARGV[1] then
    return {0, now, stamp}
end
-- First: a server that is full refuses what needs memory, unless the script has written before. So a leader
-- leads on that cannot fire, instead of one after the other.
redis.call('PEXPIRE', leader, ARGV[2])
redis.call('HSET', leader, 'client', ARGV[3], 'tick', now - tonumber(ARGV[5]))
-- Said again each time: the hash may have been deleted by somebody.
redis.call('HSET', past, 'owner', ARGV[1], 'term', redis.call('HGET', leader, 'term'))
-- It never goes back: what a beat says that has only just taken the lead, and has not set its clock by the
-- mark yet, would be all that the next one hears of slots decided ahead of it. But for a date that was wrong.
local said, known = tonumber(ARGV[4]), tonumber(redis.call('HGET', past, 'clock') or '')
if said and (not known or said >= known or known - said > 86000) then
    redis.call('HSET', leader, 'clock', ARGV[4])
    redis.call('HSET', past, 'clock', ARGV[4])
end
redis.call('PEXPIRE', past, ARGV[6])
return {1, now, stamp}
