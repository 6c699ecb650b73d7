-- close: a letter is resolved or discarded.
--
-- KEYS[1]  base   see records.lua
-- ARGV[1]  id
-- ARGV[2]  state  resolved: not yet resolved or discarded | discarded: open
-- ARGV[3]  by
-- ARGV[4]  why
-- ARGV[5]  keep   how long a closed letter is kept
-- ARGV[6]  call   new for each call; a repeated one is answered as before
--
-- returns  1  it is closed now, by this call
--          0  there is none that could be

local id, state = ARGV[1], ARGV[2]
local record = read(id)
if not record then
    return 0
end
if record.closing == ARGV[6] then
    return 1
end
if record.state == 'resolved' or record.state == 'discarded' then
    return 0
end
if state == 'discarded' and SIDE[record.state] ~= 'open' then
    return 0
end

record.closing = ARGV[6]
note(record, now(), state, ARGV[3], ARGV[4])
close(id, record, state, tonumber(ARGV[5]))
save(id, record)
return 1
