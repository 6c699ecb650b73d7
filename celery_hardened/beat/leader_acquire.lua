-- leader_acquire: take the lead if nobody has it.
--
-- KEYS[1]  leader    see leader.lua
-- KEYS[2]  term      see leader.lua
-- KEYS[3]  stamp     STRING, counts changes by tools
-- ARGV[1]  owner     token of this acquisition
-- ARGV[2]  ttl_ms    the lease
-- ARGV[3]  client    id of the asker's connection, or ''
-- ARGV[4]  identity  JSON
-- ARGV[5]  seen      the highest term the asker knows: a server that forgot everything does not begin anew
-- ARGV[6]  keep_ms   how long the term is kept
--
-- returns  {1, server ms, term, mark, how, after, stamp} if the asker leads;
--          {0, server ms, owner, client, term, identity, ms left} of who does

local now = server_ms()
local owner = redis.call('HGET', leader, 'owner')

if owner and owner ~= ARGV[1] then
    local of = redis.call('HMGET', leader, 'client', 'term', 'identity')
    return {0, now, owner, of[1] or '', of[2] or '0', of[3] or '', redis.call('PTTL', leader)}
end

if not owner then
    local last = redis.call('HMGET', past, 'term', 'clock', 'identity', 'ended')
    local term = math.max(tonumber(last[1]) or 0, tonumber(ARGV[5])) + 1
    local how = last[4] or (last[1] and 'expired' or 'free')
    redis.call('DEL', leader)
    redis.call('HSET', leader, 'owner', ARGV[1], 'term', term, 'identity', ARGV[4], 'since', now, 'tick', now,
        'how', how, 'after', last[3] or '', 'mark', last[2] or '')
    redis.call('HSET', past, 'term', term, 'owner', ARGV[1], 'identity', ARGV[4])
    redis.call('HDEL', past, 'ended')
end

redis.call('HSET', leader, 'client', ARGV[3])
redis.call('PEXPIRE', leader, ARGV[2])
redis.call('PEXPIRE', past, ARGV[6])
local mine = redis.call('HMGET', leader, 'term', 'mark', 'how', 'after')
return {1, now, mine[1], mine[2], mine[3], mine[4], redis.call('GET', KEYS[3]) or '0'}
