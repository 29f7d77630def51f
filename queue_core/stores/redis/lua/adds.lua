-- The add verb, also as a deletion's `then`: bodies, names, places and counters of new tasks.

local ADDED_READY, ADDED_DELAYED, EXISTS, TOMBSTONED = 'r', 'd', 'e', 't'

-- In a cluster the counter of all ids is on another node: callers reserve blocks of ids there and pass them on, and a
-- queue uses up one block before the next. `block` is "" without a cluster, and "-" when the caller passes none.
function adding.has_ids(queue, number, block)
  if block == '' then return true end
  local first, left = 1, 0
  local kept = call('GET', queue.keys.block)
  if kept then first, left = parse('>I8I8', kept) end
  if left >= number then return true end
  if block == '-' then return false end
  local new_first, new_left = parse('>I8I8', block)
  if new_first < first or new_left < number then return false end
  call('SET', queue.keys.block, block)
  return true
end

-- Return the first of `number` new ids.
local function take_ids(queue, number, block)
  if block == '' then return call('INCRBY', IDS, text_of(number)) - number + 1 end
  local first, left = parse('>I8I8', call('GET', queue.keys.block))
  call('SET', queue.keys.block, pack('>I8I8', first + number, left - number))
  return first
end

-- The tasks of a call, from its arguments on from `at`: etas (8 bytes each, or "" when all are ready now) and, behind
-- them, own bounds of leases (4 bytes each, 0 is none) if one has any; which queue each goes to (2 bytes each, or ""
-- when all go to the first); then the bodies, each long payload after its body.
function adding.parse_tasks(queues, args, at, number)
  local etas, which = args[at], args[at + 1]
  local tasks = { queue = queues[1], bodies = {}, payloads = {} }
  at = at + 2
  for index = 1, number do
    local body = args[at]
    tasks.bodies[index] = body
    at = at + 1
    if byte(body) % 2 == IS_LONG then
      tasks.payloads[index] = args[at]
      at = at + 1
    end
  end
  if etas ~= '' then tasks.etas = { parse('>' .. rep('I8', number), etas) } end
  if #etas > 8 * number then tasks.bounds = { parse('>' .. rep('I4', number), etas, 8 * number + 1) } end
  if which ~= '' then
    tasks.queues = {}
    for index = 1, number do tasks.queues[index] = queues[parse('>I2', which, index * 2 - 1)] end
  end
  return tasks
end

-- Return why a name can't be given, EXISTS or TOMBSTONED; nil: it is free, and its tomb is removed, if any.
local function refusal_of(queue, name, given)
  local key = queue.key .. name
  if given[key] then return EXISTS end
  local member = call('HGET', queue.keys.names, name)
  if member and not settle_used_up(queue, member) then return EXISTS end
  local until_at = names.taken_until(queue, name)
  if until_at and until_at > queue.now then return TOMBSTONED end
  if until_at then names.unearth(queue, name) end
  given[key] = true
  return nil
end

-- Add tasks number `first` to `last`; the ids are `owner`'s. Nothing is written before `flush` or `finish`. Returns the
-- first new id, packed, and a letter for each task.
function adding.add_tasks(owner, tasks, first, last, block)
  local given, letters, refused = {}, {}, 0
  local heads, priorities = {}, {}
  for index = first, last do
    local tag, name, _, priority = heads_of(tasks.bodies[index])
    priorities[index] = priority
    local letter = name ~= '' and refusal_of(tasks.queues and tasks.queues[index] or tasks.queue, name, given)
    if letter then refused = refused + 1 end
    letters[index - first + 1] = letter or false
    heads[2 * index - 1], heads[2 * index] = tag, name
  end
  local number = last - first + 1 - refused
  local tallies = {}
  if number == 0 then return pack('>I8', 0) .. concat(letters) end
  local id = take_ids(owner, number, block)
  local next_id = id
  for index = first, last do
    if not letters[index - first + 1] then
      local queue = tasks.queues and tasks.queues[index] or tasks.queue
      local tag, name, member = heads[2 * index - 1], heads[2 * index], member_of(next_id)
      local keys, eta, at, priority = queue.keys, queue.now, queue.at, priorities[index]
      if priority > 0 then use_priority(queue, priority) end
      if tasks.etas then
        eta = tasks.etas[index]
        at = text_of(eta)
      end
      next_id = next_id + 1
      set(queue, member, tasks.bodies[index])
      if tasks.payloads[index] then later(queue, 'HSET', keys.payloads, member, tasks.payloads[index]) end
      if queue.spec.is_counted then
        queue.stored = queue.stored + payload_bytes(tasks.bodies[index], tasks.payloads[index])
      end
      if name ~= '' then later(queue, 'HSET', keys.names, name, member) end
      if tasks.bounds and tasks.bounds[index] > 0 then
        local held = never_held(tag, name, tasks.payloads[index], tasks.bodies[index], priority)
        held.bound = tasks.bounds[index]
        set(queue, AS_HELD .. member, pack_held(held))
        set(queue, HAS_BOUNDS, '1')
      end
      local state = eta <= queue.now and READY or DELAYED
      letters[index - first + 1] = entered(queue, state, tag) == READY and ADDED_READY or ADDED_DELAYED
      if tasks.states then
        state = tasks.states[index]
        if tasks.held[index] ~= '' then
          set(queue, AS_HELD .. member, tasks.held[index])
          local held = parse_held(tasks.held[index])
          if held.bound then set(queue, HAS_BOUNDS, '1') end
          for number, part in ipairs(parts_of(held.flags)) do set(queue, part .. member, tasks.parts[index][number]) end
        end
      end
      state = entered(queue, state, tag)
      PLACE[state](queue, tag, member, at, priority)
      local tally = tallies[queue]
      if not tally then
        tally = { {}, {}, {}, {}, [IN_LANE] = {} }
        tallies[queue] = tally
      end
      tally[state][tag] = (tally[state][tag] or 0) + 1
    end
  end
  for queue, tally in pairs(tallies) do
    for state, tags in pairs(tally) do
      for tag, tasks in pairs(tags) do
        change(queue, tag, state, tasks)
        change(queue, tag, ADDED, tasks)
      end
    end
  end
  return pack('>I8', id) .. concat(letters)
end

-- Open the queues of a call beside the first, which keeps the call's answer; nil and the answer of a refusal.
function adding.open_rest(first, keys, now)
  local queues = { first }
  for index = 2, #keys do
    local queue, refusal = read_queue(keys[index], now)
    refusal = refusal or refusal_of_moved(queue)
    if refusal then return nil, refusal end
    queues[index] = queue
  end
  if #queues > 1 then first.beside = queues end
  return queues
end

-- Return whether one of the queues has waiters.
function adding.waiters_of_any(queues)
  local waiters = 0
  for _, queue in ipairs(queues) do waiters = max(waiters, waiters_flag(queue)) end
  return waiters
end

-- Write all pending changes. Returns the answer.
function adding.finish_all(queues, answer)
  for index = 2, #queues do finish(queues[index]) end
  return finish(queues[1], answer)
end

local function count_added(queue, tag, number)
  local all, counts = counters_of(queue, tag)
  all[READY], all[ADDED] = all[READY] + number, all[ADDED] + number
  if counts then counts[READY], counts[ADDED] = counts[READY] + number, counts[ADDED] + number end
end

-- Return whether the lanes of all tasks admit them at once; `tags` are theirs, by the index of a task.
local function are_admitted(queue, tags)
  local numbers = {}
  for _, tag in pairs(tags) do numbers[tag] = (numbers[tag] or 0) + 1 end
  return lanes.admit_new(queue, numbers)
end

-- The fast path of `add_tasks`, for ready tasks of one queue without names, long payloads and priorities, which their
-- lanes admit at once; nil when one of them is not like that.
local function add_plain(queue, args, at, number, block)
  if args[at] ~= '' or args[at + 1] ~= '' then return nil end
  at = at + 2
  local tags = {}
  for index = 0, number - 1 do
    local body = args[at + index]
    local flags, _, _, _, _, _, _, _, _, t1, t2, n1, n2 = byte(body, 1, BODY_BYTES)
    if flags == 1 or flags == 3 or flags >= PRIORITY or n1 ~= 0 or n2 ~= 0 then return nil end
    if t2 > 0 or t1 > 0 then tags[index] = sub(body, BODY_BYTES + 1, BODY_BYTES + t1 * 256 + t2) end
  end
  local letters = queue.spec.lane and {}
  if letters and not are_admitted(queue, tags) then return nil end
  local keys, now_text = queue.keys, queue.at
  local untagged, tagged, of_tag = {}, nil, nil
  local id = take_ids(queue, number, block)
  for index = 0, number - 1 do
    local body, member, tag = args[at + index], member_of(id + index), tags[index]
    if queue.spec.is_counted then queue.stored = queue.stored + payload_bytes(body) end
    set(queue, member, body)
    if letters then letters[index + 1] = tag and ADDED_DELAYED or ADDED_READY end
    local rows = untagged
    if tag then
      if not tagged then tagged, of_tag = {}, {} end
      tagged[#tagged + 1] = now_text
      tagged[#tagged + 1] = member
      rows = of_tag[tag]
      if not rows then
        rows = {}
        of_tag[tag] = rows
      end
    end
    rows[#rows + 1] = now_text
    rows[#rows + 1] = member
  end
  if #untagged > 0 then
    call_many('ZADD', keys.ready, untagged)
    count_added(queue, '', #untagged / 2)
  end
  if tagged then
    call_many('ZADD', keys.ready_tagged, tagged)
    for tag, rows in pairs(of_tag) do
      call_many('ZADD', keys.ready_of .. tag, rows)
      count_added(queue, tag, #rows / 2)
    end
  end
  return pack('>I8', id) .. (letters and concat(letters) or rep(ADDED_READY, number))
end

-- Arguments: now and the number of tasks; a block of ids; the tasks.
local function add(keys, args)
  local now, number = parse('>I8I2', args[3])
  local first, refusal = open(keys[1], now, args)
  if not first then return refusal end
  if not adding.has_ids(first, number, args[4]) then return NO_IDS end
  local added = #keys == 1 and add_plain(first, args, 5, number, args[4])
  if added then return finish(first, 'o' .. char(waiters_flag(first)) .. added) end
  local queues
  queues, refusal = adding.open_rest(first, keys, now)
  if not queues then return refusal end
  added = adding.add_tasks(first, adding.parse_tasks(queues, args, 5, number), 1, number, args[4])
  return adding.finish_all(queues, 'o' .. char(adding.waiters_of_any(queues)) .. added)
end

changes('add', add, 'grows')
