-- The waiters of a queue, and their wake-up. Only a hint: nothing of it is logged or replicated, so waiting costs no
-- sync, and after a failover or a restart waiters register again.
--
-- A waiter is `process.number.tags`: tags "*" any, "-" untagged, else 12 hex digits per tag, by comma. A process
-- listens to the sharded channel `<waiters>:<process>`, which is in the queue's slot. Keys besides the queue's own:
--   waiters  `:e`  sorted set: the waiters, by when they were last active (microseconds)
--   offered  `:o`  hash: when a waiter was last offered a task (milliseconds)
-- The functions may run twice, so they carry no session and number; key 1 is the queue's.

local function has_waiters(key)
  return redis.call('EXISTS', key .. ':e') == 1
end

local register_waiters, unregister_waiters, wake
do
  local PAGE = 64
  -- A waiter that was offered a task this recently is most likely busy with it: others are offered the next one.
  local OFFERED_MILLISECONDS = 20

  local function time_us()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
  end

  local function fits(tags, wanted)
    return tags == '*' or string.find(tags, wanted, 1, true) ~= nil
  end

  -- Offer a task to a waiter; false, and the waiter is forgotten, when its process is gone.
  local function offer(key, waiter, label, now)
    local process, number = string.match(waiter, '^(%x+)%.(%d+)%.')
    if process and redis.call('SPUBLISH', key .. ':e:' .. process, number .. label) > 0 then
      redis.call('HSET', key .. ':o', waiter, now)
      return true
    end
    redis.call('ZREM', key .. ':e', waiter)
    redis.call('HDEL', key .. ':o', waiter)
    return false
  end

  -- Arguments: waiters, each with when it was last active, or 0 for now. Answers the time, and for each waiter 1 if it
  -- was not known.
  function register_waiters(keys, args)
    redis.set_repl(redis.REPL_NONE)
    local now = time_us()
    local answer = { now }
    for at = 1, #args, 2 do
      local active_at = tonumber(args[at + 1])
      answer[#answer + 1] = redis.call('ZADD', keys[1] .. ':e', 'NX', active_at > 0 and active_at or now, args[at])
    end
    return answer
  end

  -- Arguments: waiters that left.
  function unregister_waiters(keys, args)
    redis.set_repl(redis.REPL_NONE)
    redis.call('HDEL', keys[1] .. ':o', unpack(args))
    return redis.call('ZREM', keys[1] .. ':e', unpack(args))
  end

  -- Arguments: "-" for untagged or "+tag", and how many tasks. Answers how many waiters were woken; the most
  -- recently active come first.
  function wake(keys, args)
    redis.set_repl(redis.REPL_NONE)
    local key, label, left = keys[1], args[1], tonumber(args[2])
    local wanted = label == '-' and '-' or string.sub(redis.sha1hex(string.sub(label, 2)), 1, 12)
    local now = math.floor(time_us() / 1000)
    local woken, first, others = 0, 0, {}
    while woken < left do
      local waiters = redis.call('ZREVRANGE', key .. ':e', first, first + PAGE - 1)
      if #waiters == 0 then break end
      first = first + #waiters
      local offered_at = redis.call('HMGET', key .. ':o', unpack(waiters))
      for at, waiter in ipairs(waiters) do
        if fits(string.match(waiter, '%.([^.]*)$'), wanted) then
          if offered_at[at] and now - tonumber(offered_at[at]) < OFFERED_MILLISECONDS then
            others[#others + 1] = waiter
          elseif offer(key, waiter, label, now) then
            woken = woken + 1
            if woken == left then break end
          else
            first = first - 1
          end
        end
      end
    end
    for _, waiter in ipairs(others) do
      if woken == left then break end
      if offer(key, waiter, label, now) then woken = woken + 1 end
    end
    return woken
  end
end

-- A server that has reached its maxmemory still has tasks to lease.
register('register_waiters', register_waiters, { 'allow-oom' })
register('unregister_waiters', unregister_waiters, { 'allow-oom' })
register('wake', wake, { 'allow-oom' })
