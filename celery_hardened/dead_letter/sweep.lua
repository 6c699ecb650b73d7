-- sweep: drop what is not kept any longer.
--
-- KEYS[1]  base      see records.lua
-- ARGV[1]  limit     letters at most
-- ARGV[2]  count     bound: letters
-- ARGV[3]  per task  bound: open letters of one task
-- ARGV[4]  bytes     bound: bytes
--
-- returns  how many went

local limit = tonumber(ARGV[1])
local bounds = { count = tonumber(ARGV[2]), count_per_task = tonumber(ARGV[3]), bytes = tonumber(ARGV[4]) }

local dropped = drop_expired(limit)
local over = redis.call('ZREVRANGEBYSCORE', base .. ':counts:task', '+inf', '(' .. ARGV[3])
for _, task in ipairs(over) do
    dropped = dropped + drop_of_task(task, bounds, nil, limit - dropped)
end
return dropped + drop_oldest(bounds, nil, limit - dropped)
