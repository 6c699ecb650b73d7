-- recover: move what lies in one consumer's own list back to where it came from, to be taken next and
-- in its old order.
--
-- KEYS[1]   fetching   KEYS[2]  own list   KEYS[3]  list it came from
-- ARGV[1]   member     of `fetching`
-- ARGV[2]   live       1: also if the consumer's registration has not run out
-- ARGV[3]   most       messages to move
--
-- returns   how many were moved; -1: left alone, its consumer lives

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
if ARGV[2] ~= '1' and tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) > now then
    return -1
end
local count = 0
while count < tonumber(ARGV[3]) and redis.call('LMOVE', KEYS[2], KEYS[3], 'LEFT', 'RIGHT') do
    count = count + 1
end
return count
