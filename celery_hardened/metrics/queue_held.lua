-- queue_held: how many messages workers hold, and how many wait for their time. Messages are not looked at.
--
-- Of what becomes due after the last lease there is no doubt. Before that, tags tell; of more than MOST of them
-- a part does, spread evenly.
--
-- KEYS[1]   index    kombu's sorted set of deliveries: tag -> end of the lease, or when it is due, or when taken
-- ARGV[1]   lease    seconds
-- ARGV[2]   delayed  first characters of the tag of a message that waits for its time
--
-- returns   { held, delayed, 1 if that is an estimate }

local MOST, SLICE = 5000, 500

local time = redis.call('TIME')
local last = tonumber(time[1]) + tonumber(ARGV[1]) + 1
local all = redis.call('ZCARD', KEYS[1])
local mixed = redis.call('ZCOUNT', KEYS[1], '-inf', last)

local function delayed(first, final)
    local count = 0
    for _, tag in ipairs(redis.call('ZRANGE', KEYS[1], first, final)) do
        if string.sub(tag, 1, #ARGV[2]) == ARGV[2] then
            count = count + 1
        end
    end
    return count
end

local found
if mixed <= MOST then
    found = mixed > 0 and delayed(0, mixed - 1) or 0
else
    local slices = MOST / SLICE
    local seen = 0
    for i = 0, slices - 1 do
        local first = math.floor(i * (mixed - SLICE) / (slices - 1))
        seen = seen + delayed(first, first + SLICE - 1)
    end
    found = math.floor(seen / MOST * mixed + 0.5)
end
local waiting = all - mixed + found
return { all - waiting, waiting, mixed > MOST and 1 or 0 }
