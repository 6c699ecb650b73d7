-- retention: how much is kept. It goes after records.lua, before put.lua and sweep.lua.
--
-- bounds  { count, count_per_task, bytes }
-- keep    id that must not go, or nil
-- budget  letters that may be dropped, so that no step holds the server up
-- Each returns how many it dropped.

local function drop_first(key, keep, cause)
    for _, id in ipairs(redis.call('ZRANGE', key, 0, 1)) do
        if id ~= keep then
            local record = read(id)
            if record then
                drop(id, record, cause)
            else
                redis.call('ZREM', key, id)
            end
            return true
        end
    end
    return false
end

local function drop_expired(budget)
    local ids = redis.call('ZRANGEBYSCORE', base .. ':expiry', '-inf', text(now()), 'LIMIT', 0, budget)
    for _, id in ipairs(ids) do
        local record = read(id)
        if record then
            drop(id, record, 'age')
        else
            redis.call('ZREM', base .. ':expiry', id)
        end
    end
    return #ids
end

local function drop_of_task(task, bounds, keep, budget)
    local key = base .. ':open:task:' .. task
    local excess = math.min(budget, redis.call('ZCARD', key) - bounds.count_per_task)
    local dropped = 0
    while dropped < excess and drop_first(key, keep, 'count') do
        dropped = dropped + 1
    end
    return dropped
end

local function drop_oldest(bounds, keep, budget)
    local dropped = 0
    while dropped < budget do
        local closed = redis.call('ZCARD', base .. ':closed')
        local bytes = tonumber(redis.call('HGET', base .. ':totals', 'bytes') or 0)
        local cause = nil
        if closed + redis.call('ZCARD', base .. ':open') > bounds.count then
            cause = 'count'
        elseif bytes > bounds.bytes then
            cause = 'bytes'
        end
        -- An open letter does not go to make room for the record of a closed one.
        local side = closed > 0 and ':closed' or ':open'
        if not cause or not drop_first(base .. side, keep, cause) then
            break
        end
        dropped = dropped + 1
    end
    return dropped
end
