-- The first of the two functions under the verbs that change tasks without their leases' tokens (ADR 124, ADR 128): which
-- tasks a verb means. Nothing is locked afterwards.

holding.TOLD = '>I4BI8I8I4I4'     -- a task as `pack_task` has it, behind its length
holding.EXAMINED_PER_CALL = 5000  -- leases, about
holding.PLACE_OF_STATE = { [READY] = READY, [DELAYED] = DELAYED, [LEASED] = LEASED, [DEAD] = DEAD,
  [IN_LANE_STATE] = IN_LANE }

local TOLD, TOLD_BYTES = holding.TOLD, 25  -- the bytes of it that are always there, but for the length
local BY_NAME, BY_WORKER = 'n', 'w'
local ID_ONLY, TASK_ONLY = 0, 1
local PLACE_OF_STATE = holding.PLACE_OF_STATE

local function members_of(tasks)
  local members = {}
  for index, task in ipairs(tasks) do members[index] = task.member end
  return members
end

-- Return bodies and lease records of members, in turn.
function holding.records_of(queue, members)
  local fields = {}
  for index, member in ipairs(members) do
    fields[2 * index - 1], fields[2 * index] = member, AS_HELD .. member
  end
  return read_many('HMGET', queue.key, fields)
end

-- Read tasks: `body` (nil: it is gone) and what its head says, `packed`, the lease record (nil: none).
function holding.read_tasks(queue, tasks)
  local cells = holding.records_of(queue, members_of(tasks))
  for index, task in ipairs(tasks) do
    task.body, task.packed = cells[2 * index - 1] or nil, cells[2 * index] or nil
    if task.body then task.tag, task.name, task.is_long, task.priority = heads_of(task.body) end
  end
end

-- Note state and eta of those tasks that a set has. Returns the others.
local function found_in(set_key, state, tasks)
  local others = {}
  for index, eta in ipairs(read_many('ZMSCORE', set_key, members_of(tasks))) do
    local task = tasks[index]
    if eta then
      task.state, task.eta = state, tonumber(eta)
    else
      others[#others + 1] = task
    end
  end
  return others
end

-- Note state and eta of tasks that were read. One that is in no set keeps neither.
local function find_places(queue, tasks)
  local keys, by_set, left = queue.keys, {}, {}
  for _, task in ipairs(tasks) do
    local own = at_priority(keys, task.priority)
    local set_key = task.tag == '' and own.ready or own.ready_tagged
    by_set[set_key] = by_set[set_key] or {}
    local some = by_set[set_key]
    some[#some + 1] = task
  end
  for set_key, some in pairs(by_set) do
    for _, task in ipairs(found_in(set_key, READY, some)) do left[#left + 1] = task end
  end
  for _, place in ipairs({
    { keys.leased, LEASED }, { keys.delayed_all, DELAYED }, { keys.dead_all, DEAD }, { keys.held_all, IN_LANE }
  }) do
    if #left > 0 then left = found_in(place[1], place[2], left) end
  end
end

local function in_places(tasks)
  local found = {}
  for _, task in ipairs(tasks) do
    if task.state then found[#found + 1] = task end
  end
  return found
end

-- Expire the leases among these tasks that are over, as more may be due than one call settles; note their new places.
local function expire_among(queue, tasks)
  local expired = {}
  for _, task in ipairs(tasks) do
    if task.state == LEASED and task.eta <= queue.now then
      expire(queue, task.member, parse_held(task.packed), text_of(task.eta))
      expired[#expired + 1], task.state = task, nil
    end
  end
  if #expired == 0 then return end
  flush(queue)
  holding.read_tasks(queue, expired)
  local kept = {}
  for _, task in ipairs(expired) do
    if task.body then kept[#kept + 1] = task end
  end
  find_places(queue, kept)
end

-- Return the tasks of these names, in their order.
local function named(queue, given, settles)
  local asked, known = {}, {}
  local members = read_many('HMGET', queue.keys.names, given)
  for index, name in ipairs(given) do
    local member = members[index] or names.chosen_member(name)
    if member then asked[#asked + 1] = { member = member, is_given = members[index] } end
  end
  holding.read_tasks(queue, asked)
  for _, task in ipairs(asked) do
    if task.body and (task.is_given or task.name == '') then known[#known + 1] = task end
  end
  find_places(queue, known)
  if settles then expire_among(queue, known) end
  return in_places(known)
end

-- Return whether a lease record is of a worker's lease.
local function is_of(packed, worker)
  if not string.find(packed, worker, 1, true) then return false end
  local _, _, _, flags, spents, tag_bytes, name_bytes, worker_bytes, _, at = parse(HELD, packed)
  at = at + 8 * spents + (is_set(flags, HAS_ADDED) and 8 or 0) + tag_bytes + name_bytes
  return sub(packed, at, at + worker_bytes - 1) == worker
end

-- Call `look` with the member, eta and record of each live lease that ends at `begin` or later, soonest first, until it
-- returns true.
local function look_at_leases(queue, begin, look)
  local from, first, rows = begin > queue.now and text_of(begin) or '(' .. queue.at, 0, nil
  repeat
    rows = call('ZRANGEBYSCORE', queue.keys.leased, from, '+inf', 'WITHSCORES', 'LIMIT', text_of(first), '1000')
    local members = {}
    for index = 1, #rows, 2 do members[#members + 1] = rows[index] end
    for index, packed in ipairs(read_many('HMGET', queue.key, held_fields(members))) do
      if look(members[index], tonumber(rows[2 * index]), packed) then return end
    end
    first = first + 1000
  until #rows < 2000
end

-- Return whether a worker holds a live lease, or whether more than `most` leases, if given, would have to be looked at.
function holding.has_lease(queue, worker, most)
  local found, examined = false, 0
  look_at_leases(queue, 0, function(_, _, packed)
    examined = examined + 1
    found = examined == most or is_of(packed, worker)
    return found
  end)
  return found
end

-- Return up to `limit` live leases of a worker, by their ids, of those that end at `begin` or later; and where the next
-- call goes on, 0 for nowhere: that is behind a bounded number of leases, those of one end together.
local function leased_by(queue, worker, begin, limit)
  local found, examined, last, rest = {}, 0, 0, 0
  look_at_leases(queue, begin, function(member, eta, packed)
    if #found == limit or (examined >= holding.EXAMINED_PER_CALL and eta > last) then
      rest = eta
      return true
    end
    examined, last = examined + 1, eta
    if is_of(packed, worker) then
      found[#found + 1] = { member = member, id = id_of(member), state = LEASED, eta = eta }
    end
    return false
  end)
  table.sort(found, function(one, other) return one.id < other.id end)
  return found, rest
end

-- Add up to `limit` leased tasks of these tags, soonest to end first; their tags are only in `held`.
local function add_leased(queue, found, kind, tags, limit)
  local wanted, first = set_of(tags), 0
  local left = min(limit, gauge(queue, LEASED, kind, tags))
  while left > 0 do
    local rows = call('ZRANGE', queue.keys.leased, first, first + 999, 'WITHSCORES')
    if #rows == 0 then break end
    local members = {}
    for index = 1, #rows, 2 do members[#members + 1] = rows[index] end
    for index, packed in ipairs(read_many('HMGET', queue.key, held_fields(members))) do
      if left > 0 and accepts(kind, wanted, parse_held(packed).tag) then
        found[#found + 1] = { member = members[index], state = LEASED, eta = tonumber(rows[2 * index]) }
        left = left - 1
      end
    end
    first = first + 1000
  end
end

local function in_states(queue, states, kind, tags, limit)
  local found = {}
  for index = 1, #states do
    local state = PLACE_OF_STATE[byte(states, index)]
    if state == LEASED then
      add_leased(queue, found, kind, tags, limit - #found)
    else
      for _, set_key in ipairs(sets_of(queue, state, kind, tags)) do
        if #found < limit then
          local rows = call('ZRANGE', set_key, 0, limit - #found - 1, 'WITHSCORES')
          for row = 1, #rows, 2 do
            found[#found + 1] = { member = rows[row], state = state, eta = tonumber(rows[row + 1]) }
          end
        end
      end
    end
  end
  return found
end

-- Return how many tasks without a lease these states have, up to `limit`.
local function number_in_states(queue, states, kind, tags, limit)
  local number = 0
  for index = 1, #states do
    for _, set_key in ipairs(sets_of(queue, PLACE_OF_STATE[byte(states, index)], kind, tags)) do
      number = number + call('ZCARD', set_key)
    end
  end
  return min(number, limit)
end

-- Add what is told of a task: all of it, or neither payload nor rare parts.
local function tell(queue, parts, task, depth)
  local held, body, size = task.packed or '', task.body, #parts
  if depth ~= TASK_ONLY then
    local packed = pack_task(queue, task.member, task.state, task.eta, body, LONGEST_PAYLOAD, held)
    parts[size + 1], parts[size + 2] = pack('>I4', #packed), packed
    return
  end
  local state, bytes = task.state == IN_LANE and IN_LANE_STATE or task.state, head_bytes(body)
  parts[size + 1] = pack(TOLD, TOLD_BYTES + #held + bytes, state, task.id or id_of(task.member), task.eta, #held, bytes)
  parts[size + 2], parts[size + 3] = held, sub(body, 1, bytes)
end

-- Arguments: now, what is told of each task, 1 to settle what is due, the most tasks; n and names; w, a worker and where
-- to go on; or s, the states, the kind of filter and tags. Answers the settings, those that are kept as JSON, where the next
-- call goes on (8 bytes; 0: nowhere), and the tasks, each behind its length, or only their number.
local function hold_tasks(keys, args)
  local now, depth, settles, limit = parse('>I8BBI4', args[3])
  local queue, refusal = open(keys[1], now, args)
  if not queue then return refusal end
  queue.session = false  -- held again, tasks are told as they are then: the answer is not kept
  if settles == 1 then settle(queue, SETTLED_PER_CALL) end
  local found, rest = nil, 0
  local kept = call('HGET', queue.key, ONLY_KEPT) or ''
  if args[4] == BY_NAME then
    local given = {}
    for index = 5, #args do given[index - 4] = args[index] end
    found = named(queue, given, settles == 1)
  elseif args[4] == BY_WORKER then
    found, rest = leased_by(queue, args[5], parse('>I8', args[6]), limit)
    holding.read_tasks(queue, found)
  else
    local states, kind, tags = args[5], byte(args[6]), { unpack(args, 7) }
    if depth == ID_ONLY then
      local number = pack('>I4', number_in_states(queue, states, kind, tags, limit))
      return finish(queue, 'o\0' .. pack('>I4I4I8', #queue.settings, #kept, 0) .. queue.settings .. kept .. number)
    end
    found = in_states(queue, states, kind, tags, limit)
    holding.read_tasks(queue, found)
  end
  local parts = { 'o\0', pack('>I4I4I8', #queue.settings, #kept, rest), queue.settings, kept }
  for _, task in ipairs(found) do tell(queue, parts, task, depth) end
  return finish(queue, concat(parts))
end

changes('hold', hold_tasks)
