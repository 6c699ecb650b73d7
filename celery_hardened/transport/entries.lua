-- entries: what the steps that put messages back share. It goes before the step's own file.
--
-- An entry of `unacked` of ours is the text  [<message>, "", <queue as JSON>].  The message
-- is cut out of it and never encoded again: cjson would turn [] into {} and round long integers.

local function seconds()
    local time = redis.call('TIME')
    return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function score(time)
    return string.format('%.3f', time)
end

-- How queues are laid out: { prefix, separator, steps }, as kombu's channel is configured.
local function layout_of(text)
    local found = cjson.decode(text)
    return { prefix = found[1], separator = found[2], steps = found[3] }
end

-- The list of a queue for a message's priority, by kombu's rule (Channel._get_message_priority, .priority).
local function list_of(layout, queue, envelope)
    local properties = type(envelope) == 'table' and envelope.properties
    local wanted = type(properties) == 'table' and tonumber(properties.priority) or 0
    wanted = math.max(0, math.min(9, math.floor(wanted)))
    local step = layout.steps[1]
    for _, one in ipairs(layout.steps) do
        if one <= wanted then
            step = one
        end
    end
    if step == 0 then
        return layout.prefix .. queue
    end
    return layout.prefix .. queue .. layout.separator .. string.format('%d', step)
end

-- message, list, envelope: what an entry holds and where it goes; nothing if it is no entry of ours.
-- What cjson cannot read (a lone surrogate, say) has no envelope, and goes to the default priority.
local function split(layout, entry)
    local message, queue = string.match(entry, '^%[(.*), "", (".*")%]$')
    if not message then
        return nil
    end
    local read, envelope = pcall(cjson.decode, message)
    local named, names = pcall(cjson.decode, '[' .. queue .. ']')
    if not named then
        return nil
    end
    envelope = read and envelope or nil
    return message, list_of(layout, names[1], envelope), envelope
end

-- The message, saying that an earlier delivery of it may have been started.
local function marked(message, envelope)
    if type(envelope) == 'table' and envelope['hardened-delivery'] then
        return message
    end
    local head = string.match(message, '^(.*)}%s*$')
    return head and head .. ', "hardened-delivery": {"redelivered": true}}' or message
end

-- End the delivery `tag` and put its message into its queue: where it is taken next, or (last)
-- behind all others. 1 if that was done, 0 if the delivery has ended already, -1 if this user may
-- not write to that queue: its own workers see to it.
local function put_back(unacked, index, malformed, layout, tag, mark, last)
    local entry = redis.call('HGET', unacked, tag)
    if not entry then
        redis.call('ZREM', index, tag)
        return 0
    end
    local message, list, envelope = split(layout, entry)
    local allowed = not message or redis.pcall('LTRIM', list, 0, -1)
    if type(allowed) == 'table' and allowed.err and not string.find(allowed.err, 'WRONGTYPE', 1, true) then
        return -1  -- NOPERM, in all its wordings; asked before anything is changed
    end
    redis.call('HDEL', unacked, tag)
    redis.call('ZREM', index, tag)
    if not message then
        redis.call('HSET', malformed, tag, '""\n' .. entry)
        return 0
    end
    local pushed = redis.pcall(last and 'LPUSH' or 'RPUSH', list, mark and marked(message, envelope) or message)
    if type(pushed) == 'table' then  -- that key is no list: kept where somebody looks
        redis.call('HSET', malformed, tag, string.match(entry, ', "", (".*")%]$') .. '\n' .. message)
        return 0
    end
    return 1
end

-- Empty a consumer's own list into its queue; how many messages. One whose queue is no list stays.
local function empty_own(layout, member)
    local count = 0
    while true do
        local moved = redis.pcall('LMOVE', member[1], layout.prefix .. member[2], 'LEFT', 'RIGHT')
        if not moved or type(moved) == 'table' then
            return count
        end
        count = count + 1
    end
end

-- A write that frees memory: after one the server lets a script write more though its memory is full,
-- and what these scripts write takes no more than they free.
local function begin(set)
    redis.call('ZREM', set, '')
end
