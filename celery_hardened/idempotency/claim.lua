-- claim: take a key, if nobody works on it and the work is not done.
--
-- KEYS[1]  record       see claims.lua
-- ARGV[1]  owner        token of this start
-- ARGV[2]  task         id of its task
-- ARGV[3]  fingerprint  of all its arguments, '' to compare none
-- ARGV[4]  lease_ms     how long the key is its own without a renewal
-- ARGV[5]  lifetime_ms  how long the record is kept from each step on
--
-- returns  {'won', fence, since}      it is the asker's; asked again by the same owner, the same
--          {'done', result or false}  the work was done before
--          {'busy', left_ms, same}    another start holds it; same is 1 if that is of the same task id
--          {'mismatch'}               it is held by, or done for, another message with other arguments
--
-- Arguments are compared before anything is said of the other run: a call that can
-- never be right must not wait. After a failure, and when the lease has ended, nothing is
-- compared, for nothing is known to be done. Nor is a message ever compared with itself: its redelivery may
-- reach another version of the code, with one default more, and its retry has arguments of its own.
--
-- The fence is never below the server's time, so it grows also when the record was lost.

local known = redis.call('HMGET', record, 'state', 'owner', 'task', 'lease_end', 'fence', 'fingerprint', 'result',
    'since')
local state, owner, fence = known[1], known[2], tonumber(known[5] or 0)
local now = server_ms()

if state == 'claimed' and owner == ARGV[1] then
    redis.call('HSET', record, 'lease_end', now + ARGV[4])
    keep()
    return { 'won', fence, tonumber(known[8] or fence) }
end
local works = state == 'claimed' and tonumber(known[4]) > now
local same = known[3] == ARGV[2]
if (works or state == 'done') and not same and ARGV[3] ~= '' and known[6] ~= '' and known[6] ~= ARGV[3] then
    return { 'mismatch' }
end
if state == 'done' then
    return { 'done', known[7] }
end
if works then
    return { 'busy', tonumber(known[4]) - now, same and 1 or 0 }
end

fence = math.max(fence + 1, now)
local since = tonumber(known[8] or fence)
redis.call('HSET', record, 'state', 'claimed', 'owner', ARGV[1], 'task', ARGV[2], 'fingerprint', ARGV[3],
    'lease_end', now + ARGV[4], 'fence', fence, 'since', since, 'lifetime', ARGV[5])
keep()
return { 'won', fence, since }
