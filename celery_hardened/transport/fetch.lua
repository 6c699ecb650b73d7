-- fetch: end deliveries that are done, then take messages and lease them. One step: a message
-- is in its queue before it and in `unacked` after it.
--
-- KEYS[1]   unacked     KEYS[2]  index     KEYS[3]  fence     KEYS[4]  malformed
-- KEYS[5]   own list    of the waiting consumer
-- KEYS[6..] the queues' lists, one row of all queues for each priority, highest first
--
-- ARGV[1]   tag prefix  of this consumer
-- ARGV[2]   number      of the first delivery
-- ARGV[3]   limit       messages to take at most
-- ARGV[4]   lease       seconds
-- ARGV[5]   fair        1: one message of each queue in turn; 0: all of the first queue first
-- ARGV[6]   own         0, or which queue's messages are in the own list
-- ARGV[7]   queues      how many
-- ARGV[8..] for each queue: its name as JSON, and 1 if its messages are acked (0: taken for good)
-- then      tags of deliveries that are done
--
-- returns   { malformed items, last fence number, queue, message, queue, message, ... }
--           the acked ones are numbered from ARGV[2] in this order

local unacked, index = KEYS[1], KEYS[2]
local number, limit, queues = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[7])
local after = 8 + 2 * queues

-- These come first for two more reasons: a key of another kind shows before anything is popped, and
-- after a write that frees memory the server lets a script write more though its memory is full.
if #ARGV >= after then
    redis.call('HDEL', unacked, unpack(ARGV, after))
    redis.call('ZREM', index, unpack(ARGV, after))
else
    redis.call('HDEL', unacked, '')
    redis.call('ZREM', index, '')
end

local expiry
local function lease_end()
    if not expiry then
        local time = redis.call('TIME')
        expiry = string.format('%.3f', tonumber(time[1]) + tonumber(time[2]) / 1000000 + tonumber(ARGV[4]))
    end
    return expiry
end

-- Under pcall: an error after the pop would lose what was popped.
local function is_message(raw)
    local read, envelope = pcall(cjson.decode, raw)
    if not read then
        -- A lone surrogate, as in a file name that is no UTF-8: Python writes and reads it, cjson does not.
        return string.find(envelope, 'unicode escape', 1, true)
            and string.find(raw, '^%s*{') and string.find(raw, '"properties"%s*:%s*{') and string.find(raw, '}%s*$')
    end
    return type(envelope) == 'table' and type(envelope.properties) == 'table'
end

local out, leased, bad = { 0, 0 }, 0, 0
local last = number + limit - 1

local refused

local function take(list, queue, count)
    local items = redis.pcall('RPOP', list, count)
    if not items then
        return 0
    elseif items.err then
        refused = items.err  -- the key is no list; it must not hide the other queues
        return 0
    end
    local name, acked = ARGV[6 + 2 * queue], ARGV[7 + 2 * queue] == '1'
    for _, raw in ipairs(items) do
        if not is_message(raw) then
            -- Numbered from the other end, so that the good ones stay in a row.
            local kept = redis.pcall('HSET', KEYS[4], ARGV[1] .. string.format('%012d', last - bad), name .. '\n' .. raw)
            if type(kept) == 'table' then
                redis.call('RPUSH', list, raw)
                refused = kept.err
            else
                bad = bad + 1
            end
        else
            if acked then
                local tag = ARGV[1] .. string.format('%012d', number + leased)
                redis.call('HSET', unacked, tag, '[' .. raw .. ', "", ' .. name .. ']')
                redis.call('ZADD', index, lease_end(), tag)
                leased = leased + 1
            end
            out[#out + 1] = queue
            out[#out + 1] = raw
        end
    end
    limit = limit - #items
    return #items
end

local own = tonumber(ARGV[6])
if own > 0 then
    take(KEYS[5], own, limit)
end

-- Many lists, as a worker of many queues polls: one command says that all are empty.
local rows = #KEYS
if #KEYS > 13 and redis.call('EXISTS', unpack(KEYS, 6)) == 0 then
    rows = 5
end

for row = 6, rows, queues do
    if limit <= 0 then
        break
    end
    if queues == 1 or ARGV[5] == '0' then
        for queue = 1, queues do
            if limit > 0 then
                take(KEYS[row + queue - 1], queue, limit)
            end
        end
    else
        local found
        repeat
            found = 0
            for queue = 1, queues do
                if limit > 0 then
                    found = found + take(KEYS[row + queue - 1], queue, 1)
                end
            end
        until found == 0 or limit <= 0
    end
end

if refused and leased == 0 and #out == 2 and bad == 0 then
    return redis.error_reply(refused)
end
out[1] = bad
if leased > 0 then
    out[2] = redis.call('INCRBY', KEYS[3], leased)
end
return out
