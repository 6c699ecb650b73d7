-- finish_redrive: their messages were sent.
--
-- KEYS[1]     base   see records.lua
-- ARGV[1]     token
-- ARGV[2]     keep   how long a closed letter is kept
-- ARGV[3...]  id
--
-- returns  how many were still held under the token, or have been started by its message

local token = ARGV[1]
local finished = 0
for i = 3, #ARGV do
    local id = ARGV[i]
    local record = read(id)
    if record then
        if record.state == 'redriving' and record.token == token then
            close(id, record, 'redriven', tonumber(ARGV[2]))
            save(id, record)
            finished = finished + 1
        elseif record.accepted == token then
            finished = finished + 1
        elseif record.state == 'redriven' and record.token == token and not record.accepted then
            finished = finished + 1 -- this call is repeated
        end
    end
end
return finished
