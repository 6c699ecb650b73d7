-- begin_redrive: take letters for redriving, under a token and for a while.
--
-- KEYS[1]     base   see records.lua
-- ARGV[1]     token  new for each call
-- ARGV[2]     lease  how long they are held
-- ARGV[3]     by
-- ARGV[4]     why
-- ARGV[5]     keep   a letter taken now is not dropped by age before this much time
-- ARGV[6...]  id
--
-- returns  { now, id, record, envelope, ... } of those taken. Taken are dead and parked
--          letters, those whose lease has lapsed, and those this token holds already
--          (the call is repeated). All others are left out, unchanged.

local token = ARGV[1]
local time = now()

local function may_take(record)
    if record.state == 'redriving' then
        return record.token == token or tonumber(record.lease) <= time
    end
    return record.state == 'dead' or record.state == 'parked'
end

local answer = { text(time) }
for i = 6, #ARGV do
    local id = ARGV[i]
    local record = read(id)
    local envelope = redis.call('HGET', base .. ':envelopes', id)
    if record and envelope and may_take(record) then
        if record.state ~= 'redriving' or record.token ~= token or tonumber(record.lease) <= time then
            record.token = token
            record.tokens = (record.tokens or 0) + 1
            record.lease = text(time + tonumber(ARGV[2]))
            note(record, time, 'redrive', ARGV[3], ARGV[4])
            become(id, record, 'redriving')
            save(id, record)
            local until_then = time + tonumber(ARGV[5])
            if tonumber(redis.call('ZSCORE', base .. ':expiry', id) or 0) < until_then then
                redis.call('ZADD', base .. ':expiry', text(until_then), id)
            end
        end
        table.insert(answer, id)
        table.insert(answer, cjson.encode(record))
        table.insert(answer, envelope)
    end
end
return answer
