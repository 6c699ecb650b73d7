-- put: keep a letter, once, and apply retention.
--
-- KEYS[1]   base         see records.lua
-- ARGV[1]   id
-- ARGV[2]   envelope     compressed
-- ARGV[3]   record       JSON: state, bytes, labels, parked, group, audit (see records.lua)
-- ARGV[4]   at           stored at, for an import; '' for now
-- ARGV[5]   age          how long it is kept from now
-- ARGV[6]   predecessor  letter whose redrive ended in this one, or ''
-- ARGV[7]   count        bound: letters
-- ARGV[8]   per task     bound: open letters of one task
-- ARGV[9]   bytes        bound: bytes
--
-- returns  1  it is kept
--          0  this id was there already; nothing was changed

local id = ARGV[1]
if redis.call('HEXISTS', base .. ':records', id) == 1 then
    return 0
end

-- Lists are paged by this moment, so no two letters may share it.
local function vacant(at)
    for attempt = 0, 20 do
        local moment = text(at)
        if redis.call('ZCOUNT', base .. ':open', moment, moment) == 0
            and redis.call('ZCOUNT', base .. ':closed', moment, moment) == 0 then
            break
        end
        local spread = tonumber(string.sub(redis.sha1hex(id .. attempt), 1, 5), 16)
        at = at + 1 + spread % 2 ^ attempt
    end
    return at
end

local time = now()
local at = time
if ARGV[4] ~= '' then
    at = math.min(tonumber(ARGV[4]), time)
end
local record = cjson.decode(ARGV[3])
record.at = text(vacant(at))

redis.call('HSET', base .. ':envelopes', id, ARGV[2])
save(id, record)
list(id, record)
redis.call('ZADD', base .. ':expiry', text(time + tonumber(ARGV[5])), id)
redis.call('HINCRBY', base .. ':totals', 'bytes', record.bytes)

local before = ARGV[6] ~= '' and read(ARGV[6])
if before then
    before.successor = id
    note(before, time, 'died again', '', id)
    save(ARGV[6], before)
end

local BUDGET = 100
local bounds = { count = tonumber(ARGV[7]), count_per_task = tonumber(ARGV[8]), bytes = tonumber(ARGV[9]) }
drop_expired(BUDGET)
drop_of_task(record.labels[1], bounds, id, BUDGET)
drop_oldest(bounds, id, BUDGET)
return 1
