-- open_start: write down that a suspect message is about to be started.
--
-- KEYS[1]  record       see deaths.lua
-- KEYS[2]  returned     STRING  present if its last delivery was given back on purpose
-- ARGV[1]  start        token of this delivery
-- ARGV[2]  redelivered  1 if the broker says so
-- ARGV[3]  alone        1 if it has its worker to itself this time
-- ARGV[4]  carried      deaths its message carries, in case our record was lost
-- ARGV[5]  ttl_ms       how long deaths are remembered
--
-- returns  {certain, presumed, unclosed, alone}  as they were before this start
--
-- The first unexplained redelivery is presumed one death: its earlier start was a
-- first delivery, which nobody wrote down. After that, only starts count.

local explained = redis.call('DEL', KEYS[2]) == 1
local new = redis.call('EXISTS', record) == 0
local clean = redis.call('HLEN', record) == 1 and redis.call('HGET', record, 'carried') == '0'
local carried = tonumber(ARGV[4])
if new and carried > 0 then
    redis.call('HSET', record, 'carried', carried)
elseif (new or clean) and carried == 0 and ARGV[2] == '1' and not explained then
    redis.call('HSET', record, 'presumed', 1)
end

local before = known(ARGV[1])
redis.call('HSET', record, 'open:' .. ARGV[1], 1)
if ARGV[3] == '1' then
    redis.call('HSET', record, 'alone', ARGV[1])
end
redis.call('PEXPIRE', record, ARGV[5])
return before
