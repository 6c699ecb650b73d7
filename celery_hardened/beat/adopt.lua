-- adopt: write records that another scheduler's state was read into, while no beat leads.
--
-- KEYS[1]  leader   KEYS[2]  records
-- KEYS[3]  stamp    counter of changes by tools
-- ARGV[1]  force      1: though a beat leads
-- ARGV[2]  overwrite  1: also where there is a record
-- ARGV[3]  ttl_ms     of all records
-- then     name, record
--
-- returns  nil: a beat leads. Else the names that have these records now

if ARGV[1] ~= '1' and redis.call('EXISTS', KEYS[1]) == 1 then
    return nil
end
local written = {}
for i = 4, #ARGV, 2 do
    local name, record = ARGV[i], ARGV[i + 1]
    if ARGV[2] == '1' then
        redis.call('HSET', KEYS[2], name, record)
    end
    if redis.call('HSETNX', KEYS[2], name, record) == 1 or redis.call('HGET', KEYS[2], name) == record then
        written[#written + 1] = name
    end
end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('INCR', KEYS[3])
return written
