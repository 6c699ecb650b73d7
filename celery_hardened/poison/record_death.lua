-- record_death: the parent saw the process of this message die.
--
-- KEYS[1]  record   see deaths.lua
-- ARGV[1]  start    token of its delivery; a start that was written down is closed, so one death counts once
-- ARGV[2]  carried  deaths its message carries, in case our record was lost
-- ARGV[3]  ttl_ms   how long deaths are remembered
--
-- returns  {certain, presumed, unclosed, alone}  after this death; alone is 1 if it died alone

if redis.call('EXISTS', record) == 0 and tonumber(ARGV[2]) > 0 then
    redis.call('HSET', record, 'carried', ARGV[2])
end
redis.call('HDEL', record, 'open:' .. ARGV[1])
redis.call('HSET', record, 'died:' .. ARGV[1], 1)
redis.call('PEXPIRE', record, ARGV[3])
return known('')
