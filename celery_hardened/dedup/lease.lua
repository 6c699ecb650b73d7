-- lease: put a task's key on a lease, from outside of its run. A run that has spoken knows better: it may have
-- held the key for its retry, or to its window's end, and be over.
--
-- KEYS[1]  record     see window.lua
-- ARGV[1]  task_id    who asks
-- ARGV[2]  ttl_ms     from now on, no more and no less
-- ARGV[3]  published  when the message of its run was published, in seconds
--
-- returns  1; 0 if the key is not the asker's, or if that run, or a later one, has spoken

if redis.call('HGET', record, 'owner') ~= ARGV[1] then
    return 0
end
local told = redis.call('HGET', record, 'told')
if told and tonumber(told) >= tonumber(ARGV[3]) then
    return 0
end
keep(tonumber(ARGV[2]))
return 1
