-- records: what all steps on dead letters share. It goes before the step's own file.
--
-- KEYS[1]  base  first part of every key, with the hash tag: <prefix>:{dead_letter}
--
-- base:envelopes               HASH    id -> compressed envelope, never looked into here
-- base:records                 HASH    id -> record, JSON:
--     state      dead parked redriving | redriven resolved discarded
--     at         stored at (a string: cjson would round a number of this size)
--     bytes      what it counts against the bound
--     labels     [task, queue, reason, fingerprint, error type], as in LABELS
--     parked     its chord is kept open;  group: whose
--     token      of the latest redrive;  tokens: how many there were;  lease: until when it holds
--     accepted   token of the message that may run
--     successor  letter its redrive ended in
--     closing    names the call that closed it, so that a repeated one gets the same answer
--     audit      [[at, action, by, why], ...]
-- base:expiry                  ZSET    id -> when age drops it
-- base:open, base:closed       ZSET    id -> stored at, unique
-- base:<side>:<label>:<value>  ZSET    id -> stored at; label is one of LABELS, or state
-- base:counts:<label>          ZSET    value -> open letters; for state: all letters
-- base:counts:reason_queue     ZSET    reason, a blank, queue -> open letters
-- base:totals                  HASH    bytes, dropped_age, dropped_count, dropped_bytes
-- base:fence:<id>              STRING  token that may run, '' for the first to ask, '!' for none
--
-- Moments are microseconds since the epoch by this server, exact in a double.
-- All keys but fences (TTL) are bounded by the number of letters kept.

local base = KEYS[1]
local LABELS = { 'task', 'queue', 'reason', 'fingerprint', 'error_type' }
local SIDE = {
    dead = 'open', parked = 'open', redriving = 'open',
    redriven = 'closed', resolved = 'closed', discarded = 'closed',
}
local AUDIT_MAX = 50
local FENCE_MS = 7 * 24 * 3600 * 1000

local function now()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function text(moment)
    return string.format('%.0f', moment)
end

local function read(id)
    local raw = redis.call('HGET', base .. ':records', id)
    return raw and cjson.decode(raw)
end

local function save(id, record)
    redis.call('HSET', base .. ':records', id, cjson.encode(record))
end

local function note(record, at, action, by, why)
    table.insert(record.audit, { text(at), action, by, why })
    if #record.audit > AUDIT_MAX then
        table.remove(record.audit, 1)
    end
end

local function tally(label, value, by)
    if tonumber(redis.call('ZINCRBY', base .. ':counts:' .. label, by, value)) <= 0 then
        redis.call('ZREM', base .. ':counts:' .. label, value)
    end
end

local function tally_pair(record, by)
    tally('reason_queue', record.labels[3] .. ' ' .. record.labels[2], by)
end

local function list(id, record)
    local side = SIDE[record.state]
    redis.call('ZADD', base .. ':' .. side, record.at, id)
    redis.call('ZADD', base .. ':' .. side .. ':state:' .. record.state, record.at, id)
    tally('state', record.state, 1)
    for i, label in ipairs(LABELS) do
        redis.call('ZADD', base .. ':' .. side .. ':' .. label .. ':' .. record.labels[i], record.at, id)
        if side == 'open' then
            tally(label, record.labels[i], 1)
        end
    end
    if side == 'open' then
        tally_pair(record, 1)
    end
end

local function unlist(id, record)
    local side = SIDE[record.state]
    redis.call('ZREM', base .. ':' .. side, id)
    redis.call('ZREM', base .. ':' .. side .. ':state:' .. record.state, id)
    tally('state', record.state, -1)
    for i, label in ipairs(LABELS) do
        redis.call('ZREM', base .. ':' .. side .. ':' .. label .. ':' .. record.labels[i], id)
        if side == 'open' then
            tally(label, record.labels[i], -1)
        end
    end
    if side == 'open' then
        tally_pair(record, -1)
    end
end

local function become(id, record, state)
    if SIDE[state] ~= SIDE[record.state] then
        unlist(id, record)
        record.state = state
        list(id, record)
    elseif state ~= record.state then
        redis.call('ZREM', base .. ':' .. SIDE[state] .. ':state:' .. record.state, id)
        redis.call('ZADD', base .. ':' .. SIDE[state] .. ':state:' .. state, record.at, id)
        tally('state', record.state, -1)
        tally('state', state, 1)
        record.state = state
    end
end

local function close(id, record, state, keep)
    become(id, record, state)
    redis.call('ZADD', base .. ':expiry', text(now() + keep), id)
end

-- Forget a letter. cause: 'age', 'count', 'bytes', or nil where somebody asked for it.
local function drop(id, record, cause)
    -- First, because it is allowed on a server that is out of memory; what follows then is too.
    redis.call('HDEL', base .. ':envelopes', id)
    redis.call('HDEL', base .. ':records', id)
    redis.call('ZREM', base .. ':expiry', id)
    unlist(id, record)
    redis.call('HINCRBY', base .. ':totals', 'bytes', -record.bytes)
    if cause and SIDE[record.state] == 'open' then
        redis.call('HINCRBY', base .. ':totals', 'dropped_' .. cause, 1)
    end
    -- Messages of this letter may still be under way: of two, one may run; of a letter that
    -- was closed before any started, none may.
    local tokens = record.tokens or 0
    local ended = record.state == 'resolved' or record.state == 'discarded'
    if tokens >= 2 or (tokens == 1 and ended and not record.accepted) then
        local verdict = record.accepted or (ended and '!') or ''
        redis.call('SET', base .. ':fence:' .. id, verdict, 'PX', FENCE_MS)
    end
end
