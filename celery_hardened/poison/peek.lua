-- peek: what is known of a piece of work.
--
-- KEYS[1]  record  see deaths.lua
--
-- returns  {certain, presumed, unclosed, alone}

return known('')
