-- The verbs on queues themselves: create, set, pause, fence, drop; and the list of them.

local UNLINKED_AT_ONCE = 500

-- Arguments: settings, with neither pause nor fence; settings that no function reads ("": none); now. Answers 1 when
-- the queue was created. Other limits are obeyed at once, so their cost grows with the tags and the tasks that they move.
local function put_queue(keys, args)
  local now = parse('>I8', args[5])
  local known = read_queue(keys[1], now)
  local settings = args[3]
  if known then settings = with_kept(settings, known) end
  call('HSET', keys[1], OWN, settings)
  if args[4] ~= '' then
    call('HSET', keys[1], ONLY_KEPT, args[4])
  elseif known then
    call('HDEL', keys[1], ONLY_KEPT)
  end
  if not known then
    local closed = call('HGETALL', keys[1] .. ':q')
    call_many('HSET', keys[1], closed)
    for index = 1, #closed, 2 do
      call('ZADD', keys[1] .. ':k', call('TIME')[1] .. '000000', sub(closed[index], 2))
      sessions.count_bytes(keys[1], #closed[index + 1])
    end
    call('UNLINK', keys[1] .. ':q')
  end
  local answer = 'o\0' .. (known and '0' or '1')
  local queue = known and read_queue(keys[1], now)
  if not queue or not (queue.touched or known.touched) then return answer end
  if queue.spec.limits ~= known.spec.limits then
    lanes.touch_all(queue, known.spec)
  else
    lanes.update_due(queue, MOST_CELLS)
  end
  finish(queue)
  return (lanes.tell({ queue }, answer))
end

-- Arguments: 1 to pause, 0 to resume. Answers 1 when this changed anything.
local function set_paused(keys, args)
  local queue, refusal = read_queue(keys[1], 0)
  if not queue then return refusal end
  if queue.spec.is_paused == (args[3] == '1') then return 'o\0' .. '0' end
  local flags = queue.spec.flags + (queue.spec.is_paused and -PAUSED or PAUSED)
  call('HSET', keys[1], OWN, sub(queue.settings, 1, 1) .. char(flags) .. sub(queue.settings, 3))
  return 'o' .. char(queue.spec.is_paused and waiters_flag(queue) or 0) .. '1'
end

-- Arguments: the new place of the queue; "" lifts the fence.
local function set_moved(keys, args)
  local queue, refusal = read_queue(keys[1], 0)
  if not queue then return refusal end
  call('HSET', keys[1], OWN, queue.spec.before_moved .. args[3])
  return 'o\0'
end

-- Drop a queue with all its tasks. Answers their number.
local function delete_queue(keys)
  local queue, refusal = read_queue(keys[1], 0)
  if not queue then return refusal end
  local count = 0
  for state = READY, DEAD do count = count + gauge(queue, state, ANY_TAG, {}) end
  count = count + gauge(queue, IN_LANE, ANY_TAG, {})
  local own = queue.keys
  local tags = call('ZRANGE', own.tags, 0, -1)
  for first = 1, #tags, UNLINKED_AT_ONCE do
    local sets = {}
    for index = first, min(first + UNLINKED_AT_ONCE - 1, #tags) do
      for _, priority in ipairs(queue.spec.ranks) do
        local ranked = at_priority(own, priority)
        sets[#sets + 1] = ranked.ready_of .. tags[index]
        sets[#sets + 1] = ranked.held_of .. tags[index]
      end
      sets[#sets + 1] = own.delayed_of .. tags[index]
      sets[#sets + 1] = own.dead_of .. tags[index]
    end
    call_many('UNLINK', sets[1], sets)
  end
  for _, priority in ipairs(queue.spec.ranks) do
    local ranked = at_priority(own, priority)
    call('UNLINK', ranked.ready, ranked.ready_tagged, ranked.rotation)
  end
  call('UNLINK', keys[1], own.payloads, own.leased, own.held_all, own.opens, own.delayed_all, own.delayed,
    own.dead_all, own.dead, own.names, own.tombs, own.tags, own.samples, own.workers, own.sessions,
    own.block, own.stored, own.kept)
  return 'o\0' .. pack('>I8', count)
end

-- Arguments: 1 to count the bytes of the queue's payloads from now on, those it has at once; 0 to count them no longer.
local function count_stored(keys, args)
  local queue, refusal = read_queue(keys[1], 0)
  if not queue then return refusal end
  local wanted = args[3] == '1'
  if queue.spec.is_counted == wanted then return 'o\0' end
  local flags = queue.spec.flags + (wanted and COUNTED or -COUNTED)
  call('HSET', keys[1], OWN, sub(queue.settings, 1, 1) .. char(flags) .. sub(queue.settings, 3))
  call('UNLINK', queue.keys.stored)
  if not wanted then return 'o\0' end
  local seen, bytes, cursor = {}, 0, '0'  -- a scan may return a task twice
  repeat
    local answer = call('HSCAN', keys[1], cursor, 'COUNT', 1000)
    cursor = answer[1]
    for index = 1, #answer[2], 2 do
      local member, body = answer[2][index], answer[2][index + 1]
      if is_member(member) and not seen[member] then
        local _, _, is_long = heads_of(body)
        seen[member] = true
        bytes = bytes + (is_long and call('HSTRLEN', queue.keys.payloads, member) or payload_bytes(body))
      end
    end
  until cursor == '0'
  call('SET', queue.keys.stored, text_of(bytes))
  return 'o\0'
end

-- Set the limit on the bytes of all payloads. Arguments: the limit; "": there is none.
local function limit_storage(keys, args)
  if args[3] == '' then call('DEL', keys[1]) else call('SET', keys[1], args[3]) end
  return 'o\0'
end

-- Add a queue to the list of all queues, oldest first. Arguments: its name.
local function enlist(keys, args)
  if not call('ZSCORE', keys[1], args[3]) then
    local last = call('ZRANGE', keys[1], -1, -1, 'WITHSCORES')[2]
    call('ZADD', keys[1], tonumber(last or 0) + 1, args[3])
  end
  return 'o\0'
end

-- Settle due tasks. Arguments: now, limit.
local function settle_due(keys, args)
  local now, limit = parse('>I8I4', args[3])
  local queue, refusal = open(keys[1], now, args)
  if not queue then return refusal end
  local expired, horizon, more = settle(queue, limit)
  if queue.spec.room then queue.ended = limit end  -- time alone may have made room
  local flags = ((horizon or more) and UNSETTLED or 0) + (#expired > 0 and waiters_flag(queue) or 0)
  return finish(queue, 'o' .. char(flags) .. concat(expired))
end

changes_beside('put_queue', put_queue, 'grows')
changes_beside('set_paused', set_paused)
changes_beside('set_moved', set_moved)
changes_beside('delete_queue', delete_queue)
changes_beside('count_stored', count_stored)
changes_beside('enlist', enlist, 'grows')
changes_beside('limit_storage', limit_storage, 'grows')
changes('settle', settle_due)
