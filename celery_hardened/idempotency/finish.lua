-- finish: the owner has done the work.
--
-- KEYS[1]  record       see claims.lua
-- ARGV[1]  owner        token of its start
-- ARGV[2]  lifetime_ms  how long it is remembered
-- ARGV[3]  kept         1 if a result follows
-- ARGV[4]  result       what later calls get
--
-- returns  1, or 0 if the key is not the owner's any more, and then nothing was changed
--
-- Allowed on a lapsed lease that nobody took over: the work is done, and nobody else does it.

local state = state_of(ARGV[1])
if state == 'claimed' then
    redis.call('HSET', record, 'state', 'done', 'lifetime', ARGV[2])
    if ARGV[3] == '1' then
        redis.call('HSET', record, 'result', ARGV[4])
    end
    keep()
end
return (state == 'claimed' or state == 'done') and 1 or 0
