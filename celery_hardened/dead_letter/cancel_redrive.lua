-- cancel_redrive: their messages were not sent, as far as is known; give the letters back.
--
-- KEYS[1]     base   see records.lua
-- ARGV[1]     token
-- ARGV[2]     why
-- ARGV[3...]  id
--
-- returns  how many were given back; those not held under the token are left alone

local token = ARGV[1]
local time = now()
local cancelled = 0
for i = 3, #ARGV do
    local id = ARGV[i]
    local record = read(id)
    if record and record.state == 'redriving' and record.token == token then
        become(id, record, record.parked and 'parked' or 'dead')
        record.lease = nil
        note(record, time, 'cancel', record.audit[#record.audit][3], ARGV[2])
        save(id, record)
        cancelled = cancelled + 1
    end
end
return cancelled
