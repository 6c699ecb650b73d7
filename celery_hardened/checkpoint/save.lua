-- save: replace the state of a piece of work.
--
-- KEYS[1]  record       see open.lua
-- ARGV[1]  owner        token of the run that saves
-- ARGV[2]  state        in whatever form
-- ARGV[3]  lifetime_ms  how long the record is kept from now on
-- ARGV[4]  anew         1: make a record that is gone
-- ARGV[5]  task         id of its task
-- ARGV[6]  edition      of its work, '' if it has no key
--
-- returns  'ours'; or "another's" or 'gone', and then nothing was changed
--
-- A record that is gone is made anew only for who is sure to be the one that goes on: a run that
-- wakes after its successor has finished and been forgotten must learn that it is late.

local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then
    return "another's"
end
if not owner and ARGV[4] ~= '1' then
    return 'gone'
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'state', ARGV[2], 'task', ARGV[5], 'edition', ARGV[6])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 'ours'
