-- leader_depose: end the lead of one whose connection is gone.
--
-- KEYS[1]  leader   see leader.lua
-- KEYS[2]  term     see leader.lua
-- ARGV[1]  owner    token of its acquisition
-- ARGV[2]  client   id of the connection that is gone; a leader that came back has another one
-- ARGV[3]  keep_ms  how long the term is kept
--
-- returns  1, or 0 if somebody else leads, or it came back

local of = redis.call('HMGET', leader, 'owner', 'client')
if of[1] ~= ARGV[1] then
    return ended(ARGV[1], 'client_gone') and 1 or 0
end
if ARGV[2] == '' or of[2] ~= ARGV[2] then
    return 0
end
ends(ARGV[1], 'client_gone')
redis.call('PEXPIRE', past, ARGV[3])
return 1
