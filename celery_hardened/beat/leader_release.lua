-- leader_release: the leader lets go, and one standby is woken.
--
-- KEYS[1]  leader   see leader.lua
-- KEYS[2]  term     see leader.lua
-- KEYS[3]  wake     LIST, standbys wait for a word in it
-- ARGV[1]  owner    token of its acquisition
-- ARGV[2]  wake_ms  how long the word waits for a standby
-- ARGV[3]  keep_ms  how long the term is kept
--
-- returns  1, or 0 if it did not lead

if redis.call('HGET', leader, 'owner') ~= ARGV[1] then
    return ended(ARGV[1], 'released') and 1 or 0
end
ends(ARGV[1], 'released')
redis.call('PEXPIRE', past, ARGV[3])
-- One word, whatever was left there: it wakes one.
redis.call('DEL', KEYS[3])
redis.call('LPUSH', KEYS[3], ARGV[1])
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return 1
