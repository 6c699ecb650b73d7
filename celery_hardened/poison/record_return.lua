-- record_return: a worker that stops on purpose gives a message back unfinished.
--
-- KEYS[1]  record    see deaths.lua
-- KEYS[2]  returned  STRING
-- ARGV[1]  start     token of its delivery; if its start was written down it is closed: a deploy is no death
-- ARGV[2]  ttl_ms    how long the broker may take to deliver it again
--
-- returns  1

redis.call('HDEL', record, 'open:' .. ARGV[1])
if redis.call('HGET', record, 'alone') == ARGV[1] then
    redis.call('HDEL', record, 'alone')
end
redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])
return 1
