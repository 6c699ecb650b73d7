-- tell: a worker says how it is. One that has been silent for long is forgotten.
--
-- KEYS[1]  records  HASH token -> what a worker said last
-- KEYS[2]  seen     ZSET token -> when that was, in the server's time
-- KEYS[3]  lost     ZSET lease that ran out, as JSON -> when it was told, in the server's time
-- ARGV[1]  token    of this run of the worker
-- ARGV[2]  text     what it says; '' is: it ends
-- ARGV[3]  keep     seconds after which a silent worker is forgotten
-- ARGV[4]  most     lost leases that are kept
-- ARGV[5]  ttl      seconds that the three keys live from now on
-- ARGV[6...]        lost leases. Each is another text, so that one that is told twice is kept once
--
-- returns  how many workers there are

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

if ARGV[2] == '' then
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('ZREM', KEYS[2], ARGV[1])
else
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    redis.call('ZADD', KEYS[2], string.format('%.3f', now), ARGV[1])
end

-- A few at a time: after a night without workers the first one must not hold up the server.
local gone = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - tonumber(ARGV[3]), 'LIMIT', 0, 100)
for _, token in ipairs(gone) do
    redis.call('HDEL', KEYS[1], token)
    redis.call('ZREM', KEYS[2], token)
end

-- To the microsecond: of words within one millisecond, too, the later one's lease is the later.
for i = 6, #ARGV do
    redis.call('ZADD', KEYS[3], 'NX', string.format('%.6f', now), ARGV[i])
end
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -tonumber(ARGV[4]) - 1)
for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, ARGV[5])
end
return redis.call('ZCARD', KEYS[2])
