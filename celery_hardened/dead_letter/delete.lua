-- delete: forget a letter and its record.
--
-- KEYS[1]  base  see records.lua
-- ARGV[1]  id
--
-- returns  1  it is gone now
--          0  there was none

local record = read(ARGV[1])
if not record then
    return 0
end
drop(ARGV[1], record, nil)
return 1
