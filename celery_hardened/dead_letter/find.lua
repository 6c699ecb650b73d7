-- find: walk the letters that are in all given indexes, by the time they were stored.
--
-- KEYS[1]     base    see records.lua
-- ARGV[1]     want    letters | records | ids | count
-- ARGV[2]     order   desc | asc
-- ARGV[3]     since   stored at or after, or -inf
-- ARGV[4]     until   stored at or before, or +inf
-- ARGV[5]     cursor  where an earlier call stopped, or ''
-- ARGV[6]     limit   matches wanted at most
-- ARGV[7]     budget  index entries looked at, at most
-- ARGV[8...]  index   names of indexes, at least one: open:task:<value>, ...
--
-- returns  { cursor, now, ... }; cursor is '' at the end. Then, by want:
--          letters  id, record, envelope, ...
--          records  id, record, ...
--          ids      id, ...
--          count    how many matched

local CHUNK = 500
local want, descending = ARGV[1], ARGV[2] == 'desc'
local since, before, cursor = ARGV[3], ARGV[4], ARGV[5]
local limit, budget = tonumber(ARGV[6]), tonumber(ARGV[7])

-- The smallest index is walked, the others are only asked about its entries.
local walked, others, least = nil, {}, nil
for i = 8, #ARGV do
    local key = base .. ':' .. ARGV[i]
    local size = redis.call('ZCARD', key)
    if not walked or size < least then
        if walked then
            table.insert(others, walked)
        end
        walked, least = key, size
    else
        table.insert(others, key)
    end
end

if want == 'count' and #others == 0 and cursor == '' then
    return { '', text(now()), redis.call('ZCOUNT', walked, since, before) }
end

local function chunk(size)
    if descending then
        local from = cursor == '' and before or '(' .. cursor
        return redis.call('ZREVRANGEBYSCORE', walked, from, since, 'WITHSCORES', 'LIMIT', 0, size)
    end
    local from = cursor == '' and since or '(' .. cursor
    return redis.call('ZRANGEBYSCORE', walked, from, before, 'WITHSCORES', 'LIMIT', 0, size)
end

local matched, looked, ended = {}, 0, false
while not ended and looked < budget and #matched < limit do
    local size = math.min(CHUNK, budget - looked)
    local entries = chunk(size)
    ended = #entries < 2 * size
    local ids = {}
    for i = 1, #entries, 2 do
        table.insert(ids, entries[i])
    end
    local missing = {}
    if #ids > 0 then
        for _, key in ipairs(others) do
            for i, score in ipairs(redis.call('ZMSCORE', key, unpack(ids))) do
                missing[i] = missing[i] or not score
            end
        end
    end
    for i, id in ipairs(ids) do
        looked, cursor = looked + 1, entries[2 * i]
        if not missing[i] then
            table.insert(matched, id)
            if #matched == limit then
                ended = ended and i == #ids
                break
            end
        end
    end
end

local answer = { ended and '' or cursor, text(now()) }
if want == 'count' then
    table.insert(answer, #matched)
    return answer
end
for _, id in ipairs(matched) do
    if want == 'ids' then
        table.insert(answer, id)
    else
        local record = redis.call('HGET', base .. ':records', id)
        local envelope = want == 'records' or redis.call('HGET', base .. ':envelopes', id)
        if record and envelope then
            table.insert(answer, id)
            table.insert(answer, record)
            if want == 'letters' then
                table.insert(answer, envelope)
            end
        end
    end
end
return answer
