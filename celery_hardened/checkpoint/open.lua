-- open: become the owner of a piece of work, and learn how far it has come.
--
-- KEYS[1]  record       HASH
--     owner    token of the run that opened it last: nobody else changes anything
--     task     id of that run's task
--     edition  of its work: another one for other arguments, and once the key was forgotten;
--              absent if a release before that field wrote it, which goes on with what it finds
--     state    what was saved last, absent if nothing was
--     done     1: the work is done; what is left here is for its own message, should that come back
-- ARGV[1]  owner        token of this run
-- ARGV[2]  again        1 if its message has been started before
-- ARGV[3]  lifetime_ms  how long the record is kept from now on
-- ARGV[4]  task         id of its task
-- ARGV[5]  edition      of its work, '' if it has no key
--
-- returns  state, or false

-- A record may outlive its key: its end may have been lost (a kill, an outage, a retry that succeeded without
-- it), and its position is then behind the last row. It is for its own message, whatever arguments a retry or an
-- edited redrive has, and for others that are of the same edition.

local known = redis.call('HMGET', KEYS[1], 'done', 'task', 'edition')
local done, task, edition = known[1], known[2], known[3]
if (done and ARGV[2] ~= '1') or (edition and task ~= ARGV[4] and edition ~= ARGV[5]) then
    redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'task', ARGV[4], 'edition', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('HGET', KEYS[1], 'state')
