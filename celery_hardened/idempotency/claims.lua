-- claims: what all steps on one claim share. It goes before the step's own file.
--
-- KEYS[1]  record  HASH
--     state        claimed, done or released
--     owner        who wrote that state: a token that is new for each start
--     task         id of the owner's task; kept with done work
--     lease_end    ms of server time; from then on anybody may claim
--     fence        larger than that of every claim before it
--     since        fence of the first claim since nobody knew the key; absent if a release before that field wrote it
--     fingerprint  of all arguments, '' if they are not compared
--     lifetime     ms that the record is kept from each step on
--     result       of done work, absent if it was not kept
--
-- Whoever lost the key to another owner changes nothing. Steps of one owner may be
-- repeated in their order (the answer was lost on the way), and then answer the same.

local record = KEYS[1]

-- The state that `owner` left the record in, or '' if it is another's or gone.
local function state_of(owner)
    local known = redis.call('HMGET', record, 'state', 'owner')
    return known[2] == owner and known[1] or ''
end

-- Milliseconds of the server's clock: those of workers differ.
local function server_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- A claim that is worked on, or was, is kept as long as it said; never shorter than its lease.
local function keep()
    redis.call('PEXPIRE', record, redis.call('HGET', record, 'lifetime'))
end
