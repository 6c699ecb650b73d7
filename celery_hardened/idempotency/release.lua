-- release: the owner failed; the next claim wins at once.
--
-- KEYS[1]  record  see claims.lua
-- ARGV[1]  owner   token of its start
--
-- returns  1, or 0 if the key is not the owner's any more, or the work is done
--
-- The fence stays. Done work is never released: the finish may have arrived though its
-- answer did not.

local state = state_of(ARGV[1])
if state == 'claimed' then
    redis.call('HSET', record, 'state', 'released')
    keep()
end
return (state == 'claimed' or state == 'released') and 1 or 0
