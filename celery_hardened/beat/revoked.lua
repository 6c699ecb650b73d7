-- revoked: tasks were revoked. See fenced.lua.
--
-- KEYS[2]  revoke  see steps.lua
-- ARGV[2..] entries as they are in it
--
-- returns  1

for i = 2, #ARGV do
    redis.call('LREM', KEYS[2], 0, ARGV[i])
end
return 1
