-- triggered: what became of a claim by hand, whose broker is elsewhere.
--
-- KEYS     see steps.lua; KEYS[1] is the mark of trigger.lua
-- ARGV     see steps.lua, one step, which confirms the claim ('e') or gives it up ('b'); its line is that of the claim
--
-- returns  1

local step = read_step()
end_claim(step)
if step.overlap == 'b' then
    -- It was not sent: the history says no more that it was, and another call is a new one.
    redis.pcall('LREM', history .. step.name, 1, step.line)
    redis.call('DEL', KEYS[1])
end
return 1
