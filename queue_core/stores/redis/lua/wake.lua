-- Who waits on a queue, and waking them. Only a hint: nothing of it is logged or replicated, so waiting costs no sync,
-- and after a failover or a restart those who wait say so again.
--
-- An ear is `process.number.tags`: tags "*" any, "-" untagged, else 12 hex digits per tag, by comma. A process listens
-- to the sharded channel `<ears>:<process>`, which is in the queue's slot. Keys besides the queue's own:
--   ears     `:e`  sorted set: the ears, by when they were last active (microseconds)
--   offered  `:o`  hash: when an ear was last told of a task (milliseconds)
-- The functions may be done twice, so they carry no session and number; key 1 is the queue's.

local function has_listeners(key)
  return redis.call('EXISTS', key .. ':e') == 1
end

local listen, hush, wake
do
  local PAGE = 64
  -- Whom a task was offered this lately is busy with it, most likely: the next one is offered to others first.
  local OFFERED_MILLISECONDS = 20

  local function time_us()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
  end

  local function fits(tags, wanted)
    return tags == '*' or string.find(tags, wanted, 1, true) ~= nil
  end

  -- False, and the ear is forgotten, when its process is gone.
  local function offer(key, ear, label, now)
    local process, number = string.match(ear, '^(%x+)%.(%d+)%.')
    if process and redis.call('SPUBLISH', key .. ':e:' .. process, number .. label) > 0 then
      redis.call('HSET', key .. ':o', ear, now)
      return true
    end
    redis.call('ZREM', key .. ':e', ear)
    redis.call('HDEL', key .. ':o', ear)
    return false
  end

  -- Arguments: an ear, when it was last active or 0 for now, and so on. Answers the time, and for each ear 1 if it was
  -- not known.
  function listen(keys, args)
    redis.set_repl(redis.REPL_NONE)
    local now = time_us()
    local answer = { now }
    for at = 1, #args, 2 do
      local active_at = tonumber(args[at + 1])
      answer[#answer + 1] = redis.call('ZADD', keys[1] .. ':e', 'NX', active_at > 0 and active_at or now, args[at])
    end
    return answer
  end

  -- Arguments: ears that listen no more.
  function hush(keys, args)
    redis.set_repl(redis.REPL_NONE)
    redis.call('HDEL', keys[1] .. ':o', unpack(args))
    return redis.call('ZREM', keys[1] .. ':e', unpack(args))
  end

  -- Arguments: "-" for untagged or "+tag", and how many tasks. Answers how many ears were told, the most recently
  -- active first.
  function wake(keys, args)
    redis.set_repl(redis.REPL_NONE)
    local key, label, left = keys[1], args[1], tonumber(args[2])
    local wanted = label == '-' and '-' or string.sub(redis.sha1hex(string.sub(label, 2)), 1, 12)
    local now = math.floor(time_us() / 1000)
    local told, first, others = 0, 0, {}
    while told < left do
      local ears = redis.call('ZREVRANGE', key .. ':e', first, first + PAGE - 1)
      if #ears == 0 then break end
      first = first + #ears
      local offered_at = redis.call('HMGET', key .. ':o', unpack(ears))
      for at, ear in ipairs(ears) do
        if fits(string.match(ear, '%.([^.]*)$'), wanted) then
          if offered_at[at] and now - tonumber(offered_at[at]) < OFFERED_MILLISECONDS then
            others[#others + 1] = ear
          elseif offer(key, ear, label, now) then
            told = told + 1
            if told == left then break end
          else
            first = first - 1
          end
        end
      end
    end
    for _, ear in ipairs(others) do
      if told == left then break end
      if offer(key, ear, label, now) then told = told + 1 end
    end
    return told
  end
end

-- A server whose memory is used up still has tasks to lease.
register('listen', listen, { 'allow-oom' })
register('hush', hush, { 'allow-oom' })
register('wake', wake, { 'allow-oom' })
