-- The two functions under the verbs that change tasks without their leases' tokens; `changes.py` of the package says
-- what becomes of a task (ADR 124). Nothing is locked between them: `change` does nothing where a task is not as `hold`
-- found it.

local TASK, TASK_BYTES = '>BI8I8I4I4', 25  -- as `pack_task` has it
local BY_NAME, BY_WORKER = 'n', 'w'
local ID_ONLY, TASK_ONLY = 0, 1
local CHANGED_MEANWHILE = 'x'
local REMOVED_LETTER, DELETED_LETTER, ENDED_LETTER = 'r', 'd', 'e'
local PLACE_OF_STATE = { [READY] = READY, [DELAYED] = DELAYED, [LEASED] = LEASED, [DEAD] = DEAD,
  [IN_LANE_STATE] = IN_LANE }

-- Return the leased tasks of a worker, by their ids, those whose lease has expired too.
function leasing.leased_by(queue, worker)
  local found = {}
  local rows = call('ZRANGE', queue.keys.leased, 0, -1, 'WITHSCORES')
  local members, etas = {}, {}
  for index = 1, #rows, 2 do
    members[#members + 1] = rows[index]
    etas[rows[index]] = tonumber(rows[index + 1])
  end
  for index, packed in ipairs(read_many('HMGET', queue.key, held_fields(members))) do
    if parse_held(packed).worker == worker then
      found[#found + 1] = { member = members[index], state = LEASED, eta = etas[members[index]] }
    end
  end
  table.sort(found, function(one, other) return id_of(one.member) < id_of(other.member) end)
  return found
end

-- Return the task of a name, its lease expired if it is due even when more were due than one call settles.
local function task_of_name(queue, name, settles)
  local member, body = names.member_of_name(queue, name)
  if not member then return nil end
  local tag, _, _, priority = heads_of(body)
  local state, eta = place_of(queue, tag, member, priority)
  if settles and state == LEASED and eta <= queue.now then
    expire(queue, member, parse_held(call('HGET', queue.key, AS_HELD .. member)), text_of(eta))
    flush(queue)
    return task_of_name(queue, name, false)
  end
  return state and { member = member, state = state, eta = eta, body = body }
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

local function selected(queue, args, settles, limit)
  if args[4] == BY_WORKER then
    local found = {}
    for _, task in ipairs(leasing.leased_by(queue, args[5])) do
      if task.eta > queue.now and #found < limit then found[#found + 1] = task end
    end
    return found
  elseif args[4] ~= BY_NAME then
    return in_states(queue, args[5], byte(args[6]), { unpack(args, 7) }, limit)
  end
  local found = {}
  for index = 5, #args do
    local task = task_of_name(queue, args[index], settles)
    if task then found[#found + 1] = task end
  end
  return found
end

-- Arguments: now, what is told of each task, 1 to settle what is due, the most tasks; n and names, w and a worker, or s,
-- the states, the kind of filter and tags. Answers the settings, those that are kept as JSON, and the tasks, each behind
-- its length.
local function hold_tasks(keys, args)
  local now, depth, settles, limit = parse('>I8BBI4', args[3])
  local queue, refusal = open(keys[1], now, args)
  if not queue then return refusal end
  queue.session = false  -- held again, tasks are told as they are then: the answer is not kept
  if settles == 1 then settle(queue, SETTLED_PER_CALL) end
  local kept = call('HGET', queue.key, ONLY_KEPT) or ''
  local parts = { 'o\0', pack('>I4I4', #queue.settings, #kept), queue.settings, kept }
  local found = selected(queue, args, settles == 1, limit)
  if depth == ID_ONLY then
    for _, task in ipairs(found) do
      local state = task.state == IN_LANE and IN_LANE_STATE or task.state
      parts[#parts + 1] = pack('>I4', TASK_BYTES) .. pack(TASK, state, id_of(task.member), task.eta, 0, 0)
    end
    return finish(queue, concat(parts))
  end
  for _, task in ipairs(found) do
    local body = task.body or call('HGET', queue.key, task.member)
    local packed = pack_task(queue, task.member, task.state, task.eta, body, depth == TASK_ONLY and 0 or LONGEST_PAYLOAD)
    parts[#parts + 1] = pack('>I4', #packed) .. packed
  end
  return finish(queue, concat(parts))
end

-- Return the set that has a task as the score of its eta.
local function set_with(queue, task)
  local keys, state = queue.keys, task.state
  if state == READY then
    local own = at_priority(keys, task.priority)
    return task.tag == '' and own.ready or own.ready_tagged
  elseif state == LEASED then
    return keys.leased
  elseif state == DELAYED then
    return keys.delayed_all
  end
  return state == DEAD and keys.dead_all or keys.held_all
end

-- Return whether each task is in the set of its state, with its eta, and no lease among them is over.
local function are_in_place(queue, tasks)
  local members_of, tasks_of = {}, {}
  for _, task in ipairs(tasks) do
    local set_key = set_with(queue, task)
    local members = members_of[set_key]
    if not members then
      members = {}
      members_of[set_key], tasks_of[set_key] = members, {}
    end
    local size = #members + 1
    members[size], tasks_of[set_key][size] = task.member, task
    if task.state == LEASED and task.eta <= queue.now then return false end
  end
  for set_key, members in pairs(members_of) do
    for index, eta in ipairs(read_many('ZMSCORE', set_key, members)) do
      if tonumber(eta or nil) ~= tasks_of[set_key][index].eta then return false end
    end
  end
  return true
end

-- Return the tasks that `hold` told, as they are now; nil if one of them is not as it was.
local function unchanged(queue, told)
  local tasks, members, are_read, at = {}, {}, false, 1
  while at <= #told do
    local size, from = parse('>I4', told, at)
    local state, id, eta, held_bytes, body_bytes, held_at = parse(TASK, told, from)
    local task = { member = member_of(id), state = PLACE_OF_STATE[state], eta = eta }
    if body_bytes > 0 then
      are_read = true
      task.held_then = sub(told, held_at, held_at + held_bytes - 1)
      task.tag_then = heads_of(sub(told, held_at + held_bytes, held_at + held_bytes + body_bytes - 1))
    end
    tasks[#tasks + 1], members[#members + 1] = task, task.member
    at = from + size
  end
  local bodies = read_many('HMGET', queue.key, members)
  local helds = are_read and read_many('HMGET', queue.key, held_fields(members)) or NOTHING
  for index, task in ipairs(tasks) do
    if not bodies[index] then return nil end
    task.body, task.packed = bodies[index], helds[index]
    task.tag, task.name, task.is_long, task.priority = heads_of(task.body)
    if task.tag_then and (task.tag ~= task.tag_then or (task.packed or '') ~= task.held_then) then return nil end
  end
  return are_in_place(queue, tasks) and tasks or nil
end

-- End a lease: what is counted and recorded of it. Returns the index of what becomes of its task, if that stays.
local function end_lease(queue, task, outcome)
  local how, ended_at, reason_bytes, attempts_bytes, at = parse('>BI8I4I4', outcome, 2)
  local held = parse_held(task.packed)
  local reason = sub(outcome, at, at + reason_bytes - 1)
  local kind = how % DIED
  queue.ended = queue.ended + 1
  if kind == DELETED then change(queue, task.tag, DELETED_TOTAL, 1) end
  if kind == RELEASED then change(queue, task.tag, RELEASED_TOTAL, 1) end
  if how >= DIED then change(queue, task.tag, DIED_TOTAL, 1) end
  note(queue, pack_finished(queue.key, task.member, held, how, ended_at, reason))
  at = at + reason_bytes
  if attempts_bytes > 0 then
    set(queue, ATTEMPTS .. task.member, sub(outcome, at, at + attempts_bytes - 1))
    if not is_set(held.flags, HAS_ATTEMPTS) then held.flags = held.flags + HAS_ATTEMPTS end
  end
  task.held = held
  at = at + attempts_bytes
  if at > #outcome then drop(queue, task.member, task.name, task.is_long, ended_at, held.flags) end
  return at
end

-- Write a task that stays, whose old place is free: state, eta, leases, ends of leases, tag, reason.
local function write_task(queue, task, outcome, at)
  local state, eta, leases, spents, tag_bytes, reason_bytes, texts_at = parse('>BI8I4I2I2I4', outcome, at)
  local spent = {}
  for index = 1, spents do
    spent[index], texts_at = parse('>I8', outcome, texts_at)
  end
  local tag = sub(outcome, texts_at, texts_at + tag_bytes - 1)
  local reason = sub(outcome, texts_at + tag_bytes, texts_at + tag_bytes + reason_bytes - 1)
  local held = task.held or (task.packed and parse_held(task.packed))
  if not held and (leases > 0 or spents > 0 or reason ~= '') then
    held = never_held(task.tag, task.name, task.is_long, task.body, task.priority)
  end
  if held then
    held.leases, held.spent, held.tag, held.reason = leases, spent, tag, reason
    if state == DEAD then held.ready_at = eta end
    set(queue, AS_HELD .. task.member, pack_held(held))
  end
  if tag ~= task.tag then
    set(queue, task.member, sub(task.body, 1, 9) .. pack('>I2', #tag) .. sub(task.body, 12, BODY_BYTES) .. tag
      .. sub(task.body, BODY_BYTES + #task.tag + 1))
  end
  put(queue, state, tag, task.member, text_of(eta), task.priority)
  return state
end

-- Arguments: now; 1 where a repeat may come, which is answered with the tasks; the tasks as `hold` told them, each behind
-- its length; for each what becomes of it: r(emoved), d(eleted), t and the task, or e and the end of its lease, with the
-- task if it stays.
local function change_tasks(keys, args)
  local queue, refusal = open(keys[1], (parse('>I8', args[3])), args)
  if not queue then return refusal end
  local tasks = unchanged(queue, args[5])
  if not tasks then return CHANGED_MEANWHILE end
  local rests, waiters = {}, 0
  for index, task in ipairs(tasks) do
    local outcome = args[5 + index]
    local letter = sub(outcome, 1, 1)
    TAKE[task.state](queue, task.tag, task.member, task.priority)
    if letter == REMOVED_LETTER or letter == DELETED_LETTER then
      if letter == DELETED_LETTER then change(queue, task.tag, DELETED_TOTAL, 1) end
      drop(queue, task.member, task.name, task.is_long, queue.now)
    else
      rests[index] = letter == ENDED_LETTER and end_lease(queue, task, outcome) or 2
    end
  end
  flush(queue)
  for index, task in ipairs(tasks) do
    local outcome, at = args[5 + index], rests[index]
    if at and at <= #outcome and write_task(queue, task, outcome, at) == READY then waiters = HAS_WAITERS end
  end
  flush(queue)
  if waiters ~= 0 then waiters = waiters_flag(queue) end
  return finish(queue, 'o' .. char(waiters) .. (args[4] == '1' and args[5] or ''))
end

-- Arguments: a client's session; the number of its call. Answers 1 and the tasks that the call has changed, else 0.
local function changed_before(keys, args)
  local settings, kept = unpack(call('HMGET', keys[1], OWN, AS_SESSION .. args[1]))
  local number, meaning = sessions.numbered(args[2])
  local answer = settings and kept and sessions.repeated_answer(keys[1], kept, number, 0, meaning)
  if not answer then return 'o\0' .. '0' end
  if sub(answer, 1, 1) ~= 'o' then return answer end
  return 'o\0' .. '1' .. sub(answer, 3)
end

-- Arguments: now; names. Answers for each 1 if it refuses an add, else 0.
local function taken_names(keys, args)
  local now, queue = parse('>I8', args[1]), { key = keys[1], keys = keys_of(keys[1]) }
  local letters = {}
  for index = 2, #args do
    local until_at = names.taken_until(queue, args[index])
    local is_taken = call('HEXISTS', queue.keys.names, args[index]) == 1 or (until_at and until_at > now)
    letters[#letters + 1] = is_taken and '1' or '0'
  end
  return 'o\0' .. concat(letters)
end

changes('hold', hold_tasks)
changes('change', change_tasks)
reads('changed_before', changed_before)
reads('taken_names', taken_names)
