-- problems: say which schedules cannot be used. See fenced.lua.
--
-- KEYS[2]  problems  HASH schedule -> '<ms of the server's clock since when> <text>'
-- ARGV[2]  ttl_ms    of all of them, from now on
-- then     schedule, text; '' is: none any more
--
-- returns  1

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
for i = 3, #ARGV, 2 do
    local name, text = ARGV[i], ARGV[i + 1]
    if text == '' then
        redis.call('HDEL', KEYS[2], name)
    else
        local known = redis.call('HGET', KEYS[2], name)
        if not known or string.match(known, '^%d+ (.*)$') ~= text then
            redis.call('HSET', KEYS[2], name, now .. ' ' .. text)
        end
    end
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
