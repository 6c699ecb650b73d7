-- newest: the newest line of each history. A key of that name that is no list has none.
--
-- KEYS[1]  history    what the keys of histories begin with; the schedule's name follows
-- ARGV[n]  schedules
--
-- returns  for each schedule its line, or nil

local found = {}
for i = 1, #ARGV do
    local line = redis.pcall('LINDEX', KEYS[1] .. ARGV[i], 0)
    found[i] = type(line) == 'string' and line or false
end
return found
