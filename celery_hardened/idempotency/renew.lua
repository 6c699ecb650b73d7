-- renew: the owner still works; its lease begins anew.
--
-- KEYS[1]  record    see claims.lua
-- ARGV[1]  owner     token of its start
-- ARGV[2]  lease_ms  how long the key is its own from now on
--
-- returns  1, or 0 if the key is not the owner's any more
--
-- A lapsed lease that nobody took over is renewed too. A renewal that comes after the
-- owner's own finish or release changes nothing, and is no loss.

local state = state_of(ARGV[1])
if state == 'claimed' then
    redis.call('HSET', record, 'lease_end', server_ms() + ARGV[2])
    keep()
end
return state ~= '' and 1 or 0
