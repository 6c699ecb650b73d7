-- stats: what the counters say. Nothing is walked.
--
-- KEYS[1]  base  see records.lua
-- ARGV[1]  top   groups of each label at most
-- ARGV[2]  pairs groups of reason and queue at most
--
-- returns  { open, oldest or '', newest or '', totals as field, value, ...,
--            then for reason and queue together, for state, and for each of LABELS: value, count, ... }

local function score(range)
    return range[2] or ''
end

local open = base .. ':open'
local answer = {
    redis.call('ZCARD', open),
    score(redis.call('ZRANGE', open, 0, 0, 'WITHSCORES')),
    score(redis.call('ZREVRANGE', open, 0, 0, 'WITHSCORES')),
    redis.call('HGETALL', base .. ':totals'),
    redis.call('ZREVRANGE', base .. ':counts:reason_queue', 0, ARGV[2] - 1, 'WITHSCORES'),
    redis.call('ZREVRANGE', base .. ':counts:state', 0, -1, 'WITHSCORES'),
}
for _, label in ipairs(LABELS) do
    table.insert(answer, redis.call('ZREVRANGE', base .. ':counts:' .. label, 0, ARGV[1] - 1, 'WITHSCORES'))
end
return answer
