-- forget: schedules that are gone. See fenced.lua. A pause stays: it is somebody's word.
--
-- KEYS[2]  records   KEYS[3]  problems
-- KEYS[4]  history   what the keys of histories begin with
-- ARGV[2..] schedules
--
-- returns  1

for i = 2, #ARGV do
    redis.call('HDEL', KEYS[2], ARGV[i])
    redis.call('HDEL', KEYS[3], ARGV[i])
    redis.call('DEL', KEYS[4] .. ARGV[i])
end
return 1
