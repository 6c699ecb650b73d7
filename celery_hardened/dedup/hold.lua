-- hold: say how much longer a task holds its key.
--
-- KEYS[1]  record    see window.lua
-- ARGV[1]  task_id   who asks
-- ARGV[2]  ttl_ms    from now on; '' is to the window's end, and of no window as long as it was
-- ARGV[3]  at_least  1: never shorten
-- ARGV[4]  told      of which run this is said, see window.lua; '' if of none
--
-- returns  1; 0 if the key is not the asker's

if redis.call('HGET', record, 'owner') ~= ARGV[1] then
    return 0
end
if ARGV[4] ~= '' then
    redis.call('HSET', record, 'told', ARGV[4])
end
if ARGV[2] == '' then
    if redis.call('HEXISTS', record, 'ends') == 1 then
        keep(math.huge)
    end
elseif ARGV[3] == '0' or redis.call('PTTL', record) < tonumber(ARGV[2]) then
    keep(tonumber(ARGV[2]))
end
return 1
