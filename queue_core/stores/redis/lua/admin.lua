-- The verbs of administrators: delete by name, purge, redrive, postpone, retag; none of them needs a lease's token.

-- Delete the task of a name. `reason` is that of a lease that ends by it; those of the worker `holder` (nil: of none) end
-- as done. Returns a letter: d(eleted), t(ombstoned), u(nknown).
local function delete_named(queue, name, reason, holder)
  local member, body = names.member_of_name(queue, name)
  local tag, given, is_long, priority, state, eta, held
  if member then
    tag, given, is_long, priority = heads_of(body)
    state, eta = place_of(queue, tag, member, priority)
    held = state == LEASED and parse_held(call('HGET', queue.key, AS_HELD .. member))
    if held and eta <= queue.now then  -- more tasks were due than one call settles
      expire(queue, member, held, text_of(eta))
      flush(queue)
      held, state = nil, place_of(queue, tag, member, priority)
    end
  end
  if not state then
    local until_at = names.taken_until(queue, name)
    return until_at and until_at > queue.now and 't' or 'u'
  end
  if held and holder == held.worker then
    delete_one(queue, { member = member, held = held })
  elseif held then
    remove_one(queue, { member = member, held = held }, reason)
  else
    TAKE[state](queue, tag, member, priority)
    if holder then change(queue, tag, DELETED_TOTAL, 1) end
    drop(queue, member, given, is_long, queue.now)
  end
  flush(queue)
  return 'd'
end

-- Arguments: now, 1 when a holder follows; the reason; the holder; the names.
local function delete_by_name(keys, args)
  local now, has_holder = parse('>I8B', args[3])
  local queue, refusal = open(keys[1], now, args)
  if not queue then return refusal end
  settle(queue, SETTLED_PER_CALL)
  local letters = {}
  local holder = has_holder == 1 and args[5] or nil
  for index = 6, #args do letters[#letters + 1] = delete_named(queue, args[index], args[4], holder) end
  return finish(queue, 'o\0' .. concat(letters))
end

-- Return members of up to `limit` leased tasks of these tags, soonest to end first; their tags are only in `held`.
local function leased_of(queue, kind, tags, limit)
  local found, wanted = {}, set_of(tags)
  local left = min(limit, gauge(queue, LEASED, kind, tags))
  local first = 0
  while left > 0 do
    local members = call('ZRANGE', queue.keys.leased, first, first + 999)
    if #members == 0 then break end
    local packed = read_many('HMGET', queue.key, held_fields(members))
    for index, member in ipairs(members) do
      if left > 0 and accepts(kind, wanted, parse_held(packed[index]).tag) then
        found[#found + 1] = member
        left = left - 1
      end
    end
    first = first + 1000
  end
  return found
end

local function drop_all(queue, state, members)
  local bodies = read_many('HMGET', queue.key, members)
  for index, member in ipairs(members) do
    local tag, name, is_long, priority = heads_of(bodies[index])
    TAKE[state](queue, tag, member, priority)
    drop(queue, member, name, is_long, queue.now)
  end
  flush(queue)
end

local function remove_all(queue, members, reason)
  for index, packed in ipairs(read_many('HMGET', queue.key, held_fields(members))) do
    remove_one(queue, { member = members[index], held = parse_held(packed) }, reason)
  end
  flush(queue)
end

-- Arguments: now, limit, kind of filter and 1 for the dead, 0 for the others; the reason of leases that end; tags.
local function purge(keys, args)
  local now, limit, kind, dead = parse('>I8I4BB', args[3])
  local queue, refusal = open(keys[1], now, args)
  if not queue then return refusal end
  settle(queue, SETTLED_PER_CALL)
  local tags = { unpack(args, 5) }
  local count = 0
  for _, state in ipairs(dead == 1 and { DEAD } or { READY, IN_LANE, DELAYED }) do
    for _, set in ipairs(sets_of(queue, state, kind, tags)) do
      if count < limit then
        local members = call('ZRANGE', set, 0, limit - count - 1)
        drop_all(queue, state, members)
        count = count + #members
      end
    end
  end
  if dead == 0 and count < limit then
    local members = leased_of(queue, kind, tags, limit - count)
    remove_all(queue, members, args[4])
    count = count + #members
  end
  return finish(queue, 'o\0' .. pack('>I4', count))
end

-- Arguments: now, limit, kind of filter and 1 when names follow, 0 when tags do; these.
local function redrive(keys, args)
  local now, limit, kind, by_name = parse('>I8I4BB', args[3])
  local queue, refusal = open(keys[1], now, args)
  if not queue then return refusal end
  settle(queue, SETTLED_PER_CALL)
  local members = {}
  if by_name == 1 then
    for index = 4, #args do
      local member = #members < limit and names.member_of_name(queue, args[index])
      if member and call('ZSCORE', queue.keys.dead_all, member) then members[#members + 1] = member end
    end
  else
    for _, set in ipairs(sets_of(queue, DEAD, kind, { unpack(args, 4) })) do
      for _, member in ipairs(call('ZRANGE', set, 0, limit - #members - 1)) do members[#members + 1] = member end
      if #members == limit then break end
    end
    table.sort(members, function(one, other) return id_of(one) < id_of(other) end)
  end
  local bodies = read_many('HMGET', queue.key, members)
  for index, member in ipairs(members) do
    local tag, _, _, priority = heads_of(bodies[index])
    local held = parse_held(call('HGET', queue.key, AS_HELD .. member))
    held.leases, held.reason = 0, ''
    take_dead(queue, tag, member)
    put(queue, READY, tag, member, queue.at, priority)
    set(queue, AS_HELD .. member, pack_held(held))
  end
  flush(queue)
  local redriven = {}
  for index, member in ipairs(members) do
    redriven[index] = pack_task(queue, member, READY, now, bodies[index], LONGEST_PAYLOAD)
  end
  return finish(queue, 'o' .. char(#members > 0 and waiters_flag(queue) or 0) .. concat(redriven))
end

-- Arguments: now, the eta that is expected and the new one; the name. Answers 1 when a delayed task had the expected
-- one.
local function postpone(keys, args)
  local now, expected, eta = parse('>I8I8I8', args[3])
  local queue, refusal = open(keys[1], now, args)
  if not queue then return refusal end
  local member, body = names.member_of_name(queue, args[4])
  if not member or expected <= now then return finish(queue, 'o\0' .. '0') end
  local tag, given, is_long, priority = heads_of(body)
  local state, known_eta = place_of(queue, tag, member, priority)
  if state ~= DELAYED or known_eta ~= expected then return finish(queue, 'o\0' .. '0') end
  local held = call('HGET', queue.key, AS_HELD .. member)
  held = held and parse_held(held) or never_held(tag, given, is_long, body, priority)
  held.spent = ahead_of(held.spent, now, expected)
  set(queue, AS_HELD .. member, pack_held(held))
  take_delayed(queue, tag, member)
  flush(queue)
  put_waiting(queue, tag, member, eta, priority)
  return finish(queue, 'o' .. char(eta <= now and waiters_flag(queue) or 0) .. '1')
end

local NOT_RETAGGED, RETAGGED, RETAGGED_READY = '0', 'w', 'r'

-- Change the tag of a task that nobody has leased. Returns one of the letters above.
local function retag_named(queue, name, tag)
  local member, body = names.member_of_name(queue, name)
  if not member then return NOT_RETAGGED end
  local before, _, _, priority = heads_of(body)
  local state, eta = place_of(queue, before, member, priority)
  local packed = call('HGET', queue.key, AS_HELD .. member)
  if state == LEASED and packed and eta <= queue.now then  -- more tasks were due than one call settles
    expire(queue, member, parse_held(packed), text_of(eta))
    flush(queue)
    member, body = names.member_of_name(queue, name)
    if not member then return NOT_RETAGGED end
    state, eta = place_of(queue, before, member, priority)
    packed = call('HGET', queue.key, AS_HELD .. member)
  end
  if not state or state == LEASED or before == tag then return NOT_RETAGGED end
  TAKE[state](queue, before, member, priority)
  flush(queue)
  set(queue, member, sub(body, 1, 9) .. pack('>I2', #tag) .. sub(body, 12, BODY_BYTES) .. tag
    .. sub(body, BODY_BYTES + #before + 1))
  if packed then
    local held = parse_held(packed)
    held.tag = tag
    set(queue, AS_HELD .. member, pack_held(held))
  end
  local is_ready = state == READY or state == IN_LANE
  -- The untagged have no lane: what one held is admitted.
  local at = state == IN_LANE and tag == '' and queue.at or text_of(eta)
  put(queue, is_ready and READY or state, tag, member, at, priority)
  flush(queue)
  return is_ready and RETAGGED_READY or RETAGGED
end

-- Arguments: now; the tag, "" is none; the names. Answers a letter for each.
local function retag(keys, args)
  local queue, refusal = open(keys[1], (parse('>I8', args[3])), args)
  if not queue then return refusal end
  settle(queue, SETTLED_PER_CALL)
  local letters, wakes = {}, false
  for index = 5, #args do
    local letter = retag_named(queue, args[index], args[4])
    letters[#letters + 1] = letter
    wakes = wakes or letter == RETAGGED_READY
  end
  return finish(queue, 'o' .. char(wakes and waiters_flag(queue) or 0) .. concat(letters))
end

changes('delete_by_name', delete_by_name)
changes('retag', retag)
changes('postpone', postpone)
changes('purge', purge)
changes('redrive', redrive)
