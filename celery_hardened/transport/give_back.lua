-- give_back: end deliveries and put their messages back, so that they are taken in the given order.
--
-- KEYS[1]   unacked   KEYS[2]  index   KEYS[3]  malformed
-- ARGV[1]   layout    see entries.lua
-- ARGV[2]   mark      1: they may have been started
-- ARGV[3]   last      1: behind all others
-- ARGV[4..] tags
--
-- returns   how many went back; the others had ended already

local layout = layout_of(ARGV[1])
local mark, last = ARGV[2] == '1', ARGV[3] == '1'
local first, final, step = #ARGV, 4, -1  -- the one pushed last is taken first
if last then
    first, final, step = 4, #ARGV, 1
end

local count = 0
for i = first, final, step do
    count = count + math.max(0, put_back(KEYS[1], KEYS[2], KEYS[3], layout, ARGV[i], mark, last))
end
return count
