-- revokes: tasks that have to be revoked, oldest first. They stay. See fenced.lua.
--
-- KEYS[2]  revoke  see steps.lua
-- ARGV[2]  most    how many
--
-- returns  entries

return redis.call('LRANGE', KEYS[2], 0, ARGV[2] - 1)
