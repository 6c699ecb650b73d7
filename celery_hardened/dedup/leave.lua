-- leave: free a key, if it is the asker's.
--
-- KEYS[1]  record   see window.lua
-- ARGV[1]  task_id  who asks; '' frees it whoever holds it
--
-- returns  the id of the task that held it until now; nil: nobody, or another one than asked

local owner = redis.call('HGET', record, 'owner')
if owner and (ARGV[1] == '' or owner == ARGV[1]) then
    redis.call('DEL', record)
    return owner
end
return nil
