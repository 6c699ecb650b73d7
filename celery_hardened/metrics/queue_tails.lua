-- queue_tails: how many messages wait in lists, and what the one that is next says of its age.
--
-- A message may be large, and only these few words of it leave the server. Its header stands behind its
-- body in what kombu writes, and before it in what others may, so both ends are looked at.
--
-- KEYS[1..] lists  of queues, one for each priority
-- ARGV[1..] look   for each list: 0 to count it only
--
-- returns   a line for each list: messages, bytes of the next one, when it was published or nothing, its eta or
--           nothing, with tabs between; of a list that cannot be read: -1 and why

local END = 32768

-- Quotes within a string are escaped, so what is found is a name and no part of a text.
local function word(text, name, pattern)
    local _, last = string.find(text, name, 1, true)
    return last and string.match(text, pattern, last + 1)
end

local function said(text)
    return word(text, '"hardened":', '^ ?{[^{}]-"published": ?(%-?[%d.eE+-]+)'),
        word(text, '"eta":', '^ ?"(%d[%d:.TZ+ -]*)"')
end

local out = {}
for i, list in ipairs(KEYS) do
    local length = redis.pcall('LLEN', list)
    local size, published, eta = 0, nil, nil
    if type(length) == 'table' then
        length, eta = -1, string.gsub(length.err, '%c', ' ')
    elseif length > 0 and ARGV[i] ~= '0' then
        local message = redis.call('LINDEX', list, -1)
        size = #message
        if size <= 2 * END then
            published, eta = said(message)
        else
            published, eta = said(string.sub(message, -END))
            if not published then
                published, eta = said(string.sub(message, 1, END))
            end
            message = nil
            collectgarbage()  -- or Lua would keep it for a while
        end
    end
    out[i] = length .. '\t' .. size .. '\t' .. (published or '') .. '\t' .. (eta or '')
end
return table.concat(out, '\n')
