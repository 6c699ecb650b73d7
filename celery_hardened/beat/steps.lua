-- steps: what firing by a beat and firing by hand share. It goes before the step's own file.
--
-- KEYS[1]  differs  see the step's own file
-- KEYS[2]  records  HASH schedule -> record, a text that is only ever compared whole
-- KEYS[3]  paused   HASH schedule -> '<ms of the server's clock, 0: for ever> <JSON>', see pause.lua
-- KEYS[4]  revoke   LIST of {"id": task, "terminate": true or false}, oldest first
-- KEYS[5]  history  what the keys of histories begin with; the schedule's name follows
-- KEYS[6]  skips    HASH schedule -> '<ms of the slot> <JSON>', see skip.lua
-- KEYS[7]  replaces HASH task id of a claim -> what it goes to `revoke` with, once its message is there
-- ARGV[1]  differs
-- ARGV[2]  most     lines of a history
-- ARGV[3]  ttl_ms   of records, histories and replaces
-- ARGV[4]  revokes  that are kept at most
-- ARGV[5]  revoke_ms  how long
-- then for each step
--     name, old, new  the schedule, its record as it must be ('': none), and as it becomes
--     line            of the history; '': none
--     mode            '1' if a pause holds it up, or a skip of its slot; 'k' if it passes over the slot that is
--                     skipped, and only while that is so; else '0';
--                     'a' overlaps are allowed, 's' it gives way, 'c' it cancels the other, 't' terminates it,
--                     'C' and 'T' the same of a claim: the other one has to end only when that is confirmed,
--                     'e' it confirms a claim, 'b' it gives one up, and the window is as it was before;
--                     then 'L' (LPUSH) or 'P' (PUBLISH) for each message
--     unless '0'      slot (ms; '': none that could be skipped)
--     unless 'a'      window (see dedup/window.lua), its ttl_ms, task id, record and line if it gives way ('': none)
--     for each message  list or channel, payload
--
-- Queues, channels and windows are not among KEYS: one of them that this user may not touch would have the
-- server refuse all steps, instead of that one.

local records, paused, revoke, history, skips, replaces = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local at = 6

local function read_step()
    local mode = ARGV[at + 4]
    local step = {
        name = ARGV[at], old = ARGV[at + 1], new = ARGV[at + 2], line = ARGV[at + 3],
        kind = string.sub(mode, 1, 1), overlap = string.sub(mode, 2, 2), verbs = string.sub(mode, 3),
    }
    at = at + 5
    if step.kind ~= '0' then
        step.pausable, step.slot = step.kind == '1', ARGV[at]
        at = at + 1
    end
    if step.overlap ~= 'a' then
        step.window, step.ttl, step.task = ARGV[at], ARGV[at + 1], ARGV[at + 2]
        step.other, step.other_line = ARGV[at + 3], ARGV[at + 4]
        at = at + 5
    end
    if step.overlap == 'e' or step.overlap == 'b' then
        step.claimed, step.window = step.window, nil
    end
    step.messages = at
    at = at + 2 * #step.verbs
    return step
end

local function is_paused(name)
    local pause = redis.call('HGET', paused, name)
    if not pause then
        return false
    end
    local ends = tonumber(string.match(pause, '^(%d+) '))
    local time = redis.call('TIME')
    return not ends or ends == 0 or ends > time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What is kept of the skip of this step's slot; nil: that slot is not skipped.
local function skip_of(step)
    local skip = redis.call('HGET', skips, step.name)
    if skip and string.match(skip, '^(%d+) ') == step.slot then
        return skip
    end
end

-- Add to a list of ours. A key of that name that is no list is nobody's, and goes.
local function push(verb, list, text)
    local pushed = redis.pcall(verb, list, text)
    if type(pushed) == 'table' then
        redis.call('DEL', list)
        redis.call(verb, list, text)
    end
end

local function note(name, line)
    local most = tonumber(ARGV[2])
    if line ~= '' and most > 0 then
        push('LPUSH', history .. name, line)
        redis.call('LTRIM', history .. name, 0, most - 1)
        redis.call('PEXPIRE', history .. name, ARGV[3])
    end
end

-- holder, trouble: the other task that holds the step's window; or why that cannot be told.
local function holder_of(step)
    local owner = redis.pcall('HGET', step.window, 'owner')
    if type(owner) == 'table' then
        return nil, owner.err
    end
    return owner and owner ~= step.task and owner or nil
end

-- trouble, unsent: why none of the messages went out; or why the rest of them did not.
local function send(step)
    for i = 1, #step.verbs do
        local list = ARGV[step.messages + 2 * i - 2]
        local pushes = string.sub(step.verbs, i, i) == 'L'
        local sent = redis.pcall(pushes and 'LPUSH' or 'PUBLISH', list, ARGV[step.messages + 2 * i - 1])
        if type(sent) == 'table' then
            if string.find(string.sub(step.verbs, 1, i - 1), 'P', 1, true) then
                return nil, sent.err  -- what was published cannot be taken back
            end
            for k = i - 1, 1, -1 do  -- nobody else has seen these: a script is one step
                redis.call('LPOP', ARGV[step.messages + 2 * k - 2])
            end
            return sent.err
        end
    end
end

-- Have a run ended, and those it was to replace by a claim of which no more has been heard.
local function to_end(text)
    while text do
        push('RPUSH', revoke, text)
        local id = cjson.decode(text).id
        text = redis.call('HGET', replaces, id)
        redis.call('HDEL', replaces, id)
    end
    redis.call('LTRIM', revoke, -tonumber(ARGV[4]), -1)
    redis.call('PEXPIRE', revoke, ARGV[5])
end

-- A claim is over: its message is there ('e'), or is certain never to be ('b'). Then nothing was replaced: the
-- window goes back. It keeps its time, as its owner may have given up renewing it, and nobody waits for it: a
-- later run takes it over. Another one has done so already? Then what this one would have ended is theirs to end.
local function end_claim(step)
    local replaced = redis.call('HGET', replaces, step.task)
    if step.overlap == 'e' then
        redis.call('HDEL', replaces, step.task)
        if replaced then
            to_end(replaced)
        end
        return
    end
    local owner = redis.pcall('HGET', step.claimed, 'owner')
    if type(owner) == 'string' and owner ~= step.task then
        return
    end
    redis.call('HDEL', replaces, step.task)
    if owner == step.task and replaced then
        redis.call('HSET', step.claimed, 'owner', cjson.decode(replaced).id)
    elseif owner == step.task then
        redis.call('DEL', step.claimed)
    end
end

-- trouble, unsent: as of send. Nothing was changed if there is trouble. A write of the caller's own comes
-- before: it is what the server refuses, and all else with it, while it is full, a replica or cannot save.
local function carry_out(step, holder)
    if step.window then
        local allowed = redis.pcall('HDEL', step.window, '')  -- changes nothing
        if type(allowed) == 'table' then
            return allowed.err
        end
    end
    local trouble, unsent = send(step)
    if trouble then
        return trouble
    end
    if step.window then
        redis.call('HSET', step.window, 'owner', step.task)
        redis.call('HDEL', step.window, 'ends')
        redis.call('PEXPIRE', step.window, step.ttl)
    end
    if step.window and holder then
        local terminate = string.lower(step.overlap) == 't' and 'true' or 'false'
        local text = '{"id": ' .. cjson.encode(holder) .. ', "terminate": ' .. terminate .. '}'
        if step.overlap == 'C' or step.overlap == 'T' then
            redis.call('HSET', replaces, step.task, text)
            redis.call('PEXPIRE', replaces, ARGV[3])
        else
            to_end(text)
        end
    end
    if step.claimed then
        end_claim(step)
    end
    note(step.name, step.line)
    return nil, unsent
end
