-- trigger: fire by hand. Whoever leads, and no record moves.
--
-- KEYS     see steps.lua; KEYS[1] is a mark that this was done, and by which call, which lives an hour
-- ARGV     see steps.lua, one step; ARGV[1] is 1 to fire beside a run that is not over, else 0, and then a token
--          of this call, by which its repeat is told from somebody else's
--
-- returns  { outcome, text, trouble } as of fire.lua: t, o, p or f; d if another call has done it, nothing was changed

local forces, call = string.sub(ARGV[1], 1, 1) == '1', string.sub(ARGV[1], 2)
local done_by = redis.call('GET', KEYS[1])
if done_by then
    return { done_by == call and 't' or 'd', '', '' }
end
redis.call('HLEN', replaces)  -- while nothing was changed, in case it is no hash
local step = read_step()
if step.pausable and is_paused(step.name) then
    return { 'p', '', '' }
end
local holder, trouble, unsent
if step.window then
    holder, trouble = holder_of(step)
    if trouble then
        return { 'f', '', trouble }
    elseif holder and forces then
        step.window = nil  -- the other one keeps it
    elseif holder and step.overlap == 's' then
        return { 'o', holder, '' }
    end
end
redis.call('SET', KEYS[1], call, 'PX', 3600000)
trouble, unsent = carry_out(step, holder)
if trouble then
    redis.call('DEL', KEYS[1])
    return { 'f', '', trouble }
end
return { 't', step.window and holder or '', unsent or '' }
