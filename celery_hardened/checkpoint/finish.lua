-- finish: the work is done; keep its state a while for its own message, should that come back.
--
-- KEYS[1]  record       see open.lua
-- ARGV[1]  owner        token of the run that finished
-- ARGV[2]  lifetime_ms  how long the record is kept from now on
--
-- returns  'ours'; or "another's" or 'gone', and then nothing was changed

local owner = redis.call('HGET', KEYS[1], 'owner')
if owner ~= ARGV[1] then
    return owner and "another's" or 'gone'
end
redis.call('HSET', KEYS[1], 'done', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'ours'
