-- fenced: what only the leader may do. It goes before the step's own file.
--
-- KEYS[1]  leader   HASH of who leads; its field `owner` is a token, new for each leadership
-- ARGV[1]  owner    who asks
--
-- returns  nil: another one leads, or nobody

if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
    return nil
end
