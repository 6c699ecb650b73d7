-- window: what all steps on one key share. It goes before the step's own file.
--
-- KEYS[1]  record  HASH, with a TTL always: when it has passed, the key is free
--     owner  id of the task that holds it
--     told   when the message was published whose run has said something of the key last, in seconds;
--            absent: none has
--     ends   ms of the server's clock: the end of a window, which no lease moves; absent: no window

local record = KEYS[1]

local function now()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Keep the key for `ttl` ms, though not beyond its window.
local function keep(ttl)
    local ends = redis.call('HGET', record, 'ends')
    if ends then
        ttl = math.min(ttl, tonumber(ends) - now())
    end
    -- A TTL of zero would delete the record, and it is right then: the window is over.
    redis.call('PEXPIRE', record, string.format('%d', math.max(0, ttl)))
end
