-- The second of the two functions under the verbs that change tasks without their leases' tokens;
-- `verbs/change_verbs.py` says what becomes of a task (ADR 124). It does nothing where a task is not as `hold` found it.

local TOLD, PLACE_OF_STATE = holding.TOLD, holding.PLACE_OF_STATE
local SET = 0                     -- the first byte of what is told of a set of tasks that are removed unread
local CHANGED_MEANWHILE = 'x'
local REMOVED_LETTER, DELETED_LETTER, ENDED_LETTER = 'r', 'd', 'e'

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
local function unchanged(queue, told, at)
  local tasks = {}
  while at <= #told do
    local size, state, id, eta, held_bytes, body_bytes, held_at = parse(TOLD, told, at)
    local body_at = held_at + held_bytes
    tasks[#tasks + 1] = { member = member_of(id), state = PLACE_OF_STATE[state], eta = eta,
      held_then = sub(told, held_at, body_at - 1), head_then = sub(told, body_at, body_at + body_bytes - 1) }
    at = at + 4 + size
  end
  holding.read_tasks(queue, tasks)
  for _, task in ipairs(tasks) do
    if not task.body or (task.packed or '') ~= task.held_then or sub(task.body, 1, #task.head_then) ~= task.head_then then
      return nil
    end
  end
  return are_in_place(queue, tasks) and tasks or nil
end

-- Return the members of a set that is told in `told`, by state, and where it ends; nil if it has fewer now.
local function members_of_set(queue, told)
  local size, _, number, kind, states, at = parse('>I4BI4BB', told)
  local first_tag, tags, chosen = at + states, {}, {}
  local ends = 4 + size
  local tag_at = first_tag
  while tag_at <= ends do
    local bytes, from = parse('>I2', told, tag_at)
    tags[#tags + 1], tag_at = sub(told, from, from + bytes - 1), from + bytes
  end
  for index = at, at + states - 1 do
    local state = PLACE_OF_STATE[byte(told, index)]
    for _, set_key in ipairs(sets_of(queue, state, kind, tags)) do
      local members = number > 0 and call('ZRANGE', set_key, '0', text_of(number - 1)) or NOTHING
      chosen[#chosen + 1] = { state = state, members = members }
      number = number - #members
    end
  end
  return number == 0 and chosen or nil, ends + 1
end

-- Remove tasks that nobody has leased.
local function remove_members(queue, state, members)
  local cells, take = holding.records_of(queue, members), TAKE[state]
  for index, member in ipairs(members) do
    local tag, name, is_long, priority = heads_of(cells[2 * index - 1])
    local packed = cells[2 * index]
    take(queue, tag, member, priority)
    drop(queue, member, name, is_long, queue.now, packed and byte(packed, HELD_FLAGS) or 0)
  end
end

-- Read the lines of attempts of the tasks whose leases end.
local function read_lines(queue, tasks, outcomes)
  local ended, fields = {}, {}
  for index, task in ipairs(tasks) do
    if sub(outcomes[5 + index], 1, 1) == ENDED_LETTER and is_set(byte(task.packed, HELD_FLAGS), HAS_ATTEMPTS) then
      ended[#ended + 1], fields[#fields + 1] = task, ATTEMPTS .. task.member
    end
  end
  for index, lines in ipairs(read_many('HMGET', queue.key, fields)) do ended[index].lines = lines end
end

-- End a lease: what is counted and recorded of it. Returns the index of what becomes of its task, if that stays.
local function end_lease(queue, task, outcome)
  local how, ended_at, finished_bytes, attempts_bytes, at = parse('>BI8I4I4', outcome, 2)
  local kind, flags = how % DIED, byte(task.packed, HELD_FLAGS)
  queue.ended = queue.ended + 1
  if kind == DELETED then change(queue, task.tag, DELETED_TOTAL, 1) end
  if kind == RELEASED then change(queue, task.tag, RELEASED_TOTAL, 1) end
  if how >= DIED then change(queue, task.tag, DIED_TOTAL, 1) end
  note(queue, sub(outcome, at, at + finished_bytes - 1))
  at = at + finished_bytes
  if attempts_bytes > 0 then
    leasing.keep_lines(queue, task.member, task.lines, sub(outcome, at, at + attempts_bytes - 1))
    at = at + attempts_bytes
  end
  if at > #outcome then drop(queue, task.member, task.name, task.is_long, ended_at, flags) end
  return at
end

-- Write a task that stays, whose old place is free: state, eta, tag and lease record ("": as it was).
local function write_task(queue, task, outcome, at)
  local state, eta, tag_bytes, held_bytes, tag_at = parse('>BI8I2I4', outcome, at)
  local tag = sub(outcome, tag_at, tag_at + tag_bytes - 1)
  if held_bytes > 0 then
    set(queue, AS_HELD .. task.member, sub(outcome, tag_at + tag_bytes, tag_at + tag_bytes + held_bytes - 1))
  end
  if tag ~= task.tag then
    set(queue, task.member, sub(task.body, 1, 9) .. pack('>I2', #tag) .. sub(task.body, 12, BODY_BYTES) .. tag
      .. sub(task.body, BODY_BYTES + #task.tag + 1))
  end
  put(queue, state, tag, task.member, text_of(eta), task.priority)
  return state
end

-- Arguments: now; 1 where a repeat may come, which is answered with the tasks; the tasks as `hold` told them, each behind
-- its length, and before them a set that is removed unread, if any: 0, the number, the kind of filter, states and tags; for
-- each task what becomes of it: r(emoved), d(eleted), t and the task, or e, the end of its lease, its record and new
-- attempts, with the task if it stays.
local function change_tasks(keys, args)
  local told, queue, refusal = args[5], open(keys[1], (parse('>I8', args[3])), args)
  if not queue then return refusal end
  local chosen, at = NOTHING, 1
  if #told > 4 and byte(told, 5) == SET then chosen, at = members_of_set(queue, told) end
  local tasks = chosen and unchanged(queue, told, at)
  if not tasks then return CHANGED_MEANWHILE end
  local rests, waiters = {}, 0
  read_lines(queue, tasks, args)
  for _, some in ipairs(chosen) do remove_members(queue, some.state, some.members) end
  for index, task in ipairs(tasks) do
    local outcome = args[5 + index]
    local letter = sub(outcome, 1, 1)
    TAKE[task.state](queue, task.tag, task.member, task.priority)
    if letter == REMOVED_LETTER or letter == DELETED_LETTER then
      if letter == DELETED_LETTER then change(queue, task.tag, DELETED_TOTAL, 1) end
      drop(queue, task.member, task.name, task.is_long, queue.now, task.packed and byte(task.packed, HELD_FLAGS) or 0)
    else
      rests[index] = letter == ENDED_LETTER and end_lease(queue, task, outcome) or 2
    end
  end
  flush(queue)
  for index, task in ipairs(tasks) do
    local outcome, rest_at = args[5 + index], rests[index]
    if rest_at and rest_at <= #outcome and write_task(queue, task, outcome, rest_at) == READY then
      waiters = HAS_WAITERS
    end
  end
  flush(queue)
  if waiters ~= 0 then waiters = waiters_flag(queue) end
  return finish(queue, 'o' .. char(waiters) .. (args[4] == '1' and told or ''))
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

changes('change', change_tasks)
reads('changed_before', changed_before)
reads('taken_names', taken_names)
