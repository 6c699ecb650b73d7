-- enter: take a key for a task, unless another task holds it.
--
-- KEYS[1]  record   see window.lua
-- ARGV[1]  task_id  who asks
-- ARGV[2]  ttl_ms   until it is free again
-- ARGV[3]  window   ms from now that nothing lengthens it beyond; '' if it is no window
-- ARGV[4]  told     of which run this is said, see window.lua; '' if of none
--
-- returns  the id of the task that holds it now

local owner = redis.call('HGET', record, 'owner')
if owner and owner ~= ARGV[1] then
    return owner
end
redis.call('HSET', record, 'owner', ARGV[1])
if ARGV[3] ~= '' then
    redis.call('HSET', record, 'ends', now() + tonumber(ARGV[3]))
else
    redis.call('HDEL', record, 'ends')
end
if ARGV[4] ~= '' then
    redis.call('HSET', record, 'told', ARGV[4])
end
redis.call('PEXPIRE', record, ARGV[2])
return ARGV[1]
