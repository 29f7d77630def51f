-- Recount the counters, sets and names of a queue, a piece at a time; the queue must not change meanwhile.

local PIECE = 500
local SETS = { 'leased', 'delayed_all', 'delayed', 'dead_all', 'dead', 'held_all' }

-- Return the problems of one task, and its state.
local function problems_of(queue, member, body, problems)
  local keys = queue.keys
  local id = sub(member, 2)
  local tag, name, is_long, priority = heads_of(body)
  local ranked = at_priority(keys, priority)
  local found, in_sets = nil, 0
  local places = {
    { tag == '' and ranked.ready or ranked.ready_tagged, READY, tag ~= '' and ranked.ready_of .. tag },
    { keys.held_all, IN_LANE_STATE, ranked.held_of .. tag },
    { keys.delayed_all, DELAYED, tag == '' and keys.delayed or keys.delayed_of .. tag },
    { keys.leased, LEASED },
    { keys.dead_all, DEAD, tag == '' and keys.dead or keys.dead_of .. tag },
  }
  for _, place in ipairs(places) do
    local eta = call('ZSCORE', place[1], member)
    if eta then
      in_sets = in_sets + 1
      found = place[2]
    end
    if place[3] and call('ZSCORE', place[3], member) ~= eta then
      problems[#problems + 1] = 'task ' .. id .. ' is not in the set of its tag as in that of its state'
    end
  end
  if in_sets ~= 1 then
    problems[#problems + 1] = 'task ' .. id .. ' is in ' .. in_sets .. ' states'
    return nil
  end
  if name ~= '' and call('HGET', keys.names, name) ~= member then
    problems[#problems + 1] = 'task ' .. id .. ' does not hold its name'
  end
  if is_long ~= (call('HEXISTS', keys.payloads, member) == 1) then
    problems[#problems + 1] = 'the payload of task ' .. id .. ' is missing, or there for nothing'
  end
  local held = call('HGET', queue.key, AS_HELD .. member)
  held = held and parse_held(held)
  if (found == LEASED or found == DEAD) and not held then
    problems[#problems + 1] = 'task ' .. id .. ' was never granted, but is leased or dead'
  end
  if held and (held.tag ~= tag or held.name ~= name or (held.flags % 2 == IS_LONG) ~= is_long) then
    problems[#problems + 1] = 'the lease of task ' .. id .. ' has another tag, name or payload'
  end
  if held and held.priority ~= priority then
    problems[#problems + 1] = 'the lease of task ' .. id .. ' has another priority'
  end
  if priority > 0 and not (queue.spec.has_priorities and queue.spec.has_priorities[priority]) then
    problems[#problems + 1] = 'task ' .. id .. ' has a priority that its queue does not know'
  end
  local parts = set_of(held and parts_of(held.flags) or {})
  for _, part in ipairs({ ATTEMPTS, PROGRESS, CHECKPOINT }) do
    if (parts[part] or false) ~= (call('HEXISTS', queue.key, part .. member) == 1) then
      problems[#problems + 1] = 'field ' .. part .. member .. ' of task ' .. id .. ' is missing, or there for nothing'
    end
  end
  if found == LEASED and held and (held.leased_at == 0 or held.leases == 0) then
    problems[#problems + 1] = 'task ' .. id .. ' is leased but was never granted'
  end
  return found
end

-- Arguments: a cursor. Answers the next one, and lists: problems; for each task its id, state, how many fields it has
-- beside its body, whether it has a name, has a long payload, the bytes of its payload, and its tag.
local function check_piece(keys, args)
  local queue = read_queue(keys[1], 0)
  if not queue then return { '0', {}, {} } end
  local answer = call('HSCAN', queue.key, args[1], 'COUNT', PIECE)
  local problems, tasks = {}, {}
  for index = 1, #answer[2], 2 do
    local member, body = answer[2][index], answer[2][index + 1]
    if is_member(member) then
      local tag, name, is_long = heads_of(body)
      local state = problems_of(queue, member, body, problems)
      local held = call('HGET', queue.key, AS_HELD .. member)
      local fields = held and 1 + #parts_of(byte(held, HELD_FLAGS)) or 0
      local bytes = is_long and call('HSTRLEN', queue.keys.payloads, member) or payload_bytes(body)
      tasks[#tasks + 1] = pack('>I8BBBBI4', id_of(member), state or 0, fields, name ~= '' and 1 or 0,
        is_long and 1 or 0, bytes) .. tag
    end
  end
  return { answer[1], problems, tasks }
end

local function size_of(queue, set, tag)
  local size = 0
  for _, priority in ipairs(queue.spec.ranks) do
    size = size + call('ZCARD', at_priority(queue.keys, priority)[set] .. (tag or ''))
  end
  return size
end

-- Return a problem of the lane of a tag, or of its place in the rotation; "": none.
local function problem_of_lane(queue, field)
  local counts, lane = counts_for(queue, field), queue.spec.lane
  if lane and lane.most and counts[READY] > max(0, lane.most - counts[LEASED]) and field ~= UNTAGGED then
    return 'has more tasks that are ready than its limit allows'
  end
  local is_placed = queue.spec.is_fair and counts[READY] > 0
  for _, priority in ipairs(queue.spec.ranks) do
    local place = call('ZSCORE', at_priority(queue.keys, priority).rotation, field)
    local expected = is_placed and counts[AT_RANK] == priority and counts[AT_PLACE] or false
    if (place and tonumber(place)) ~= expected then return 'has another place in the rotation than it should have' end
  end
  return ''
end

-- Arguments: fields of counters. Answers sizes (of the sets above, those of READY tasks with a tag and without one, the
-- hashes of names and long payloads; the queue's own hash, and the fields in it beside tasks), then for each field its
-- counters (packed, or nil), a problem ("": none) and, for a tag, the sizes of its sets and whether it is listed.
local function check_counts(keys, args)
  local queue = read_queue(keys[1], 0)
  if not queue then return { {} } end
  local own, sizes = queue.keys, {}
  for index, set in ipairs(SETS) do sizes[index] = call('ZCARD', own[set]) end
  sizes[#sizes + 1] = size_of(queue, 'ready_tagged')
  sizes[#sizes + 1] = size_of(queue, 'ready')
  for _, hash in ipairs({ own.names, own.payloads, queue.key }) do sizes[#sizes + 1] = call('HLEN', hash) end
  sizes[#sizes + 1] = 1 + call('HEXISTS', queue.key, ONLY_KEPT) + call('HEXISTS', queue.key, HAS_BOUNDS)
    + (queue.packed_tagged and 1 or 0) + (queue.packed_untagged and 1 or 0)
    + call('ZCARD', own.tags) + call('ZCARD', own.workers) + call('ZCARD', own.sessions)
  local answer = { sizes }
  for _, field in ipairs(args) do
    local sets = {}
    if #field > 1 then
      local tag = sub(field, 2)
      sets = { size_of(queue, 'ready_of', tag), call('ZCARD', own.delayed_of .. tag),
        call('ZCARD', own.dead_of .. tag), size_of(queue, 'held_of', tag), call('ZSCORE', own.tags, tag) and 1 or 0 }
    end
    local problem = field ~= TAGGED and queue.touched and problem_of_lane(queue, field) or ''
    answer[#answer + 1] = { call('HGET', queue.key, field), problem, sets }
  end
  return answer
end

-- Answers the bytes of all payloads as they are counted, if they are.
local function check_stored(keys)
  local queue = read_queue(keys[1], 0)
  if not queue or not queue.spec.is_counted then return '' end
  return call('GET', queue.keys.stored) or '0'
end

-- Arguments: a cursor. Answers the next one and tags that have counters.
local function check_tags(keys, args)
  local answer = call('ZSCAN', keys_of(keys[1]).tags, args[1], 'COUNT', PIECE)
  local tags = {}
  for index = 1, #answer[2], 2 do tags[#tags + 1] = answer[2][index] end
  return { answer[1], tags }
end

reads('check_piece', check_piece)
reads('check_counts', check_counts)
reads('check_stored', check_stored)
reads('check_tags', check_tags)
