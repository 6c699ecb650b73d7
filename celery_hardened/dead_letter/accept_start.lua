-- accept_start: may the message that carries this token run?
--
-- Of all messages that redrives of one letter have sent, the first to ask is the one that
-- runs: here is where two of them are told apart.
--
-- KEYS[1]  base   see records.lua
-- ARGV[1]  id
-- ARGV[2]  token
-- ARGV[3]  keep   how long a closed letter is kept
--
-- returns  1  yes, and no other token from now on
--          0  no: another message has started, or the letter was closed before any did

local id, token = ARGV[1], ARGV[2]
local record = read(id)

if not record then
    local fence = base .. ':fence:' .. id
    local verdict = redis.call('GET', fence)
    if verdict == '' then
        redis.call('SET', fence, token, 'KEEPTTL')
        return 1
    end
    return (not verdict or verdict == token) and 1 or 0
end

if record.accepted then
    return record.accepted == token and 1 or 0
end
if record.state == 'resolved' or record.state == 'discarded' then
    return 0
end

record.accepted = token
close(id, record, 'redriven', tonumber(ARGV[3]))
save(id, record)
return 1
