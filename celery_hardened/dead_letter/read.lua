-- read: letters by id.
--
-- KEYS[1]     base  see records.lua
-- ARGV[1...]  id
--
-- returns  { now, id, record, envelope, ... }; ids that are unknown are left out

local answer = { text(now()) }
for _, id in ipairs(ARGV) do
    local record = redis.call('HGET', base .. ':records', id)
    local envelope = redis.call('HGET', base .. ':envelopes', id)
    if record and envelope then
        table.insert(answer, id)
        table.insert(answer, record)
        table.insert(answer, envelope)
    end
end
return answer
