-- deaths: what all steps on one piece of work share. It goes before the step's own file.
--
-- KEYS[1]  record  HASH
--     open:<start>   a recorded start that has not ended
--     died:<start>   a start whose process the parent saw die
--     carried        deaths its message carried when this record was made anew; 0: none count any more,
--                    whatever it carries, because it has come further since
--     presumed       1: it came back once without explanation
--     alone          the start that has, or had when its worker died, the worker to itself
--
-- A start is named by a token of its delivery, so a step that is repeated counts once.

local record = KEYS[1]

-- {certain, presumed, unclosed, alone}; the start `except` does not count as unclosed.
local function known(except)
    local certain, presumed, unclosed, alone = 0, 0, 0, 0
    local fields = redis.call('HGETALL', record)
    for i = 1, #fields, 2 do
        local name, value = fields[i], fields[i + 1]
        if name == 'carried' then
            certain = certain + tonumber(value)
        elseif name == 'presumed' then
            presumed = tonumber(value)
        elseif name == 'alone' then
            alone = (value ~= except) and 1 or 0
        elseif string.sub(name, 1, 5) == 'died:' then
            certain = certain + 1
        elseif name ~= 'open:' .. except then
            unclosed = unclosed + 1
        end
    end
    return { certain, presumed, unclosed, alone }
end
