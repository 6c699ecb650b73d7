-- release: what lies in own lists goes back; their consumer may wait no longer.
--
-- The lists stay known for a while, to be swept: a wait that the server has not yet seen the end
-- of may still put a message there.
--
-- KEYS[1]   fetching
-- ARGV[1]   layout   see entries.lua
-- ARGV[2]   stay     seconds that they are still the consumer's
-- ARGV[3..] members  of `fetching`
--
-- returns   how many messages went back

begin(KEYS[1])
local layout = layout_of(ARGV[1])
local ends = score(seconds() + tonumber(ARGV[2]))
local count = 0
for i = 3, #ARGV do
    count = count + empty_own(layout, cjson.decode(ARGV[i]))
    redis.call('ZADD', KEYS[1], ends, ARGV[i])
end
return count
