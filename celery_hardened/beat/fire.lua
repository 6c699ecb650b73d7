-- fire: take steps, each whole or not at all: the record moves on and the messages are in their queues.
--
-- KEYS     see steps.lua; KEYS[1] is the leader, see fenced.lua, which goes before both
-- ARGV     see steps.lua; ARGV[1] is the owner, ARGV[3] the ttl_ms of records
--
-- returns  nil: see fenced.lua. Else { outcomes, index, text, trouble, index, text, trouble, ... }
--     outcomes  a letter for each step
--         t  taken; text: the task that was cancelled or terminated. Also of a step that was taken before and
--            is asked for again, its answer being lost: nothing is sent again, and there is no text.
--         o  overlapped: the run before is not over; text: its task
--         p  paused, nothing was changed
--         k  its slot is skipped, nothing was changed; text: the skip, as it is kept
--         u  its slot is not skipped, or no more, nothing was changed
--         s  stale, nothing was changed; text: the record as it is
--         f  failed, nothing was changed; trouble: why
--     index     from 1, of the steps with a text or a trouble

-- Asked here, where nothing was changed yet, in case those keys are no hashes.
local pauses, skipped = redis.call('HLEN', paused) > 0, redis.call('HLEN', skips) > 0
redis.call('HLEN', replaces)

local function take(step)
    local current = redis.call('HGET', records, step.name) or ''
    if current ~= step.old then
        if current == step.new then
            return 't'
        elseif step.other and step.other ~= '' and current == step.other then
            return 'o', holder_of(step)
        end
        return 's', current
    end
    if pauses and step.pausable and is_paused(step.name) then
        return 'p'
    end
    local skip = skipped and step.slot and skip_of(step) or nil
    if step.kind == 'k' and not skip then
        return 'u'
    elseif step.kind ~= 'k' and skip then
        return 'k', skip
    end
    local holder, trouble, unsent
    if step.window then
        holder, trouble = holder_of(step)
        if trouble then
            return 'f', nil, trouble
        elseif holder and step.overlap == 's' then
            if step.other ~= '' then
                redis.call('HSET', records, step.name, step.other)
            end
            note(step.name, step.other_line)
            return 'o', holder
        end
    end
    redis.call('HSET', records, step.name, step.new)
    trouble, unsent = carry_out(step, holder)
    if not trouble then
        if skip then
            redis.call('HDEL', skips, step.name)  -- it is in the history from now on
        end
        return 't', holder, unsent
    elseif step.old == '' then
        redis.call('HDEL', records, step.name)
    else
        redis.call('HSET', records, step.name, step.old)
    end
    return 'f', nil, trouble
end

local outcomes, out = {}, { '' }
while at <= #ARGV do
    local outcome, text, trouble = take(read_step())
    outcomes[#outcomes + 1] = outcome
    if text or trouble then
        out[#out + 1] = #outcomes
        out[#out + 1] = text or ''
        out[#out + 1] = trouble or ''
    end
end
out[1] = table.concat(outcomes)

-- Once a day, and last: after a write like this one the server would let a script write though it is full.
local ttl = tonumber(ARGV[3])
local left = redis.call('PTTL', records)
if left ~= -2 and left < ttl - 86400000 then
    redis.call('PEXPIRE', records, ttl)
end
return out
