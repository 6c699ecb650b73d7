-- release: a consumer waits no longer; what still lies in its own lists goes back.
--
-- The lists stay known for a while, to be swept: a wait that the server has not yet seen the end
-- of may still put a message there.
--
-- KEYS[1]   fetching
-- ARGV[1]   layout   see entries.lua
-- ARGV[2..] members  of `fetching`
--
-- returns   how many messages went back

local layout = layout_of(ARGV[1])
local now = score(seconds())
local count = 0
for i = 2, #ARGV do
    local member = cjson.decode(ARGV[i])
    while redis.call('LMOVE', member[1], layout.prefix .. member[2], 'LEFT', 'RIGHT') do
        count = count + 1
    end
    redis.call('ZADD', KEYS[1], now, ARGV[i])
end
return count
