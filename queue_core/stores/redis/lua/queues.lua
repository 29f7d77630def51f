-- The verbs on queues themselves: create, set, pause, fence, drop; and the list of them.

local UNLINKED_AT_ONCE = 500

-- Arguments: settings, with neither pause nor fence; settings that no function reads ("": none). Answers 1 when the
-- queue was created.
local function put_queue(keys, args)
  local known = call('HGET', keys[1], OWN)
  local settings = args[3]
  if known then
    local _, flags = byte(known, 1, 2)
    local kept = (is_set(flags, PAUSED) and PAUSED or 0) + (is_set(flags, COUNTED) and COUNTED or 0)
    settings = sub(settings, 1, 1) .. char(byte(settings, 2) + kept) .. sub(settings, 3)
    settings = settings .. sub(known, SETTINGS_BYTES + 1)
  end
  call('HSET', keys[1], OWN, settings)
  if args[4] ~= '' then
    call('HSET', keys[1], ONLY_KEPT, args[4])
  elseif known then
    call('HDEL', keys[1], ONLY_KEPT)
  end
  return 'o\0' .. (known and '0' or '1')
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
  call('HSET', keys[1], OWN, sub(queue.settings, 1, SETTINGS_BYTES) .. args[3])
  return 'o\0'
end

-- Drop a queue with all its tasks. Answers their number.
local function delete_queue(keys)
  local queue, refusal = read_queue(keys[1], 0)
  if not queue then return refusal end
  local count = 0
  for state = READY, DEAD do count = count + gauge(queue, state, ANY_TAG, {}) end
  local own = queue.keys
  local tags = call('ZRANGE', own.tags, 0, -1)
  for first = 1, #tags, UNLINKED_AT_ONCE do
    local sets = {}
    for index = first, min(first + UNLINKED_AT_ONCE - 1, #tags) do
      sets[#sets + 1] = own.ready_of .. tags[index]
      sets[#sets + 1] = own.delayed_of .. tags[index]
      sets[#sets + 1] = own.dead_of .. tags[index]
    end
    call('UNLINK', unpack(sets))
  end
  call('UNLINK', keys[1], own.payloads, own.leased, own.ready_tagged, own.ready, own.delayed_all,
    own.delayed, own.dead_all, own.dead, own.names, own.tombs, own.tags, own.samples, own.workers, own.sessions,
    own.block, own.stored)
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
  local expired, horizon = settle(queue, limit)
  local flags = (horizon and UNSETTLED or 0) + (#expired > 0 and waiters_flag(queue) or 0)
  return finish(queue, 'o' .. char(flags) .. concat(expired))
end

changes_beside('put_queue', put_queue, 'grows')
changes_beside('set_paused', set_paused)
changes_beside('set_moved', set_moved)
changes_beside('delete_queue', delete_queue)
changes_beside('count_stored', count_stored)
changes_beside('enlist', enlist, 'grows')
changes('settle', settle_due)
