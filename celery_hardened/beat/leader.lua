-- leader: what all steps on the leadership share. It goes before the step's own file.
--
-- KEYS[1]  leader  HASH, there as long as somebody leads: its time to live is the lease
--     owner     token, new for each acquisition
--     term      number of the acquisition
--     client    id of the leader's connection, '' if it may not know it
--     identity  JSON: host, pid, version
--     since     ms of server time
--     clock     what the leader's clock said, seconds since the epoch; absent until it said so
--     tick      ms of server time at which its main loop was last known to live
--     how       how it came to lead: free, released, client_gone or expired
--     after     identity of the leader before, '' if none is known
--     mark      the clock of the leader before, '' if none is known
-- KEYS[2]  term    HASH, outlives every lease
--     term      of the last acquisition
--     owner     of the last acquisition
--     identity  of that leader
--     clock     what its clock said last
--     ended     released or client_gone; absent while it leads, or after its lease ran out
--
-- Each step may be repeated when its answer was lost, and then answers the same.

local leader, past = KEYS[1], KEYS[2]

-- Milliseconds of the server's clock: those of hosts differ.
local function server_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- The leadership of `owner` ends now, and the next leader is told how.
local function ends(owner, how)
    redis.call('DEL', leader)
    redis.call('HSET', past, 'owner', owner, 'ended', how)
end

-- Did it end so before? Then this is a repetition.
local function ended(owner, how)
    local known = redis.call('HMGET', past, 'owner', 'ended')
    return known[1] == owner and known[2] == how
end
