-- sweep: put back what nobody holds any more, and what has become due. Any worker runs it, about
-- once a second; all it reads it reads in the same step, so there is no lock to be left behind.
--
-- KEYS[1]   unacked   KEYS[2]  index   KEYS[3]  fetching   KEYS[4]  malformed   KEYS[5]  sweep
-- ARGV[1]   layout      see entries.lua
-- ARGV[2]   visibility  seconds after which kombu's own deliveries count as abandoned
-- ARGV[3]   every       seconds; sooner after the last sweep, nothing is done
-- ARGV[4]   pause       seconds without a sweep after which leases get grace: the server was away, or
--                       everybody was cut off from it, and the living have to renew first
-- ARGV[5]   grace       seconds
-- ARGV[6]   page        entries looked at
-- ARGV[7]   keep        seconds that an abandoned consumer's list stays known: a process that was
--                       frozen may still put a message there when it wakes
--
-- returns   { put back after a lease ran out, become due, tags of abandoned deliveries of kombu's own,
--             1 if there may be more: sweep again at once }

begin(KEYS[2])
local now = seconds()
local last = tonumber(redis.call('HGET', KEYS[5], 'at') or 0)
if math.abs(now - last) < tonumber(ARGV[3]) then
    return { 0, 0, {}, 0 }
end
local grace = tonumber(redis.call('HGET', KEYS[5], 'grace') or 0)
if grace - now > 60 + tonumber(ARGV[5]) then
    grace = now + tonumber(ARGV[5])  -- the server's clock was set back
end
local pauses = 0
if now - last > tonumber(ARGV[4]) then
    -- Three times in a row at most: where every sweep comes late, leases still have to end.
    pauses = tonumber(redis.call('HGET', KEYS[5], 'pauses') or 0) + 1
    if pauses <= 3 then
        grace = now + tonumber(ARGV[5])
    end
end
local offset = tonumber(redis.call('HGET', KEYS[5], 'offset') or 0)

local layout = layout_of(ARGV[1])
local page = tonumber(ARGV[6])
-- Backwards: what is pushed last is taken first, so the oldest have to go last, over all pages.
local found = redis.call('ZREVRANGEBYSCORE', KEYS[2], score(now), '-inf', 'WITHSCORES', 'LIMIT', offset, page)

local expired, due, abandoned, left = 0, 0, {}, 0
for i = 1, #found, 2 do
    local tag, done = found[i], -1
    if string.sub(tag, 1, 4) == 'h1d:' then
        done = put_back(KEYS[1], KEYS[2], KEYS[4], layout, tag, false, false)
        due = due + math.max(0, done)
    elseif string.sub(tag, 1, 3) ~= 'h1:' then
        if tonumber(found[i + 1]) <= now - tonumber(ARGV[2]) then
            abandoned[#abandoned + 1] = tag
        end
    elseif now >= grace then
        done = put_back(KEYS[1], KEYS[2], KEYS[4], layout, tag, true, false)
        expired = expired + math.max(0, done)
    end
    if done < 0 then
        left = left + 1
    end
end

if now >= grace then
    -- The youngest first: the old ones have been emptied before.
    local gone = redis.call('ZREVRANGEBYSCORE', KEYS[3], score(now), '-inf', 'LIMIT', 0, 10 * page)
    for _, text in ipairs(gone) do
        empty_own(layout, cjson.decode(text))
    end
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', score(now - tonumber(ARGV[7])))
end

-- The next sweep goes on behind what stays, or starts again.
local more = #found == 2 * page
offset = more and offset + left or 0
redis.call('HSET', KEYS[5], 'at', score(now), 'grace', score(grace), 'pauses', pauses, 'offset', offset)
redis.call('EXPIRE', KEYS[5], 86400)
return { expired, due, abandoned, more and 1 or 0 }
