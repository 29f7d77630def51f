-- The peek verb: tasks by id, in their settled states. Nothing keeps the ids of a queue in order, so a page is found
-- in one of three ways: few tasks are read and sorted; many are found by trying the ids in order; or, when the ids are
-- sparse, the caller reads all bodies a piece at a time, and then the tasks of the lowest ids.

local SORTED_AT_MOST = 5000
local IDS_WALKED = 10000
local IDS_PER_READ = 1000
local SPARSE = 's'

-- Return the state of a task as of now; nil: its expiry deletes it.
local function settled_state(queue, state, eta, held)
  if eta > queue.now or state == IN_LANE then return state end
  if state == DELAYED then return READY end
  if state == LEASED then
    if not is_exhausted(queue, held) then return READY end
    return not queue.spec.deletes_exhausted and DEAD or nil
  end
  return state
end

-- Parse a request: kind of filter, tags, states (a number for each, as bits), the id to go on after, limit, payload
-- bytes.
local function parse_peek(args)
  local now, kind, states, after, limit, payload_bytes, tag_count = parse('>I8BBI8I4I4I2', args[1])
  local tags = { unpack(args, 2, 1 + tag_count) }
  return {
    now = now, kind = kind, states = states, after = after, limit = limit, payload_bytes = payload_bytes,
    tags = tags, wanted = set_of(tags), rest = 2 + tag_count
  }
end

local function shows(request, state)
  if state == IN_LANE then state = IN_LANE_STATE end
  return state ~= nil and is_set(request.states, 2 ^ (state - 1))
end

-- Pack the task of a body, if the request includes it.
local function shown(queue, request, member, body)
  local tag, _, _, priority = heads_of(body)
  if id_of(member) <= request.after or not accepts(request.kind, request.wanted, tag) then return nil end
  local state, eta = place_of(queue, tag, member, priority)
  local held = state == LEASED and parse_held(call('HGET', queue.key, AS_HELD .. member))
  if not state or not shows(request, settled_state(queue, state, eta, held)) then return nil end
  return pack_task(queue, member, state, eta, body, request.payload_bytes)
end

-- Return the first requested tasks among these members, in order; one more than a page if there is one.
local function page_of(queue, request, members)
  local page = {}
  for first = 1, #members, IDS_PER_READ do
    local some = { unpack(members, first, min(first + IDS_PER_READ - 1, #members)) }
    for index, body in ipairs(read_many('HMGET', queue.key, some)) do
      local task = body and shown(queue, request, some[index], body)
      if task then page[#page + 1] = task end
      if #page > request.limit then return page end
    end
  end
  return page
end

-- Make an answer: 1 when there are more, then the tasks.
local function pack_page(page, limit)
  local has_more = #page > limit
  if has_more then page[#page] = nil end
  return 'o' .. char(has_more and 1 or 0) .. concat(page)
end

-- Return the stored states from which the requested settled ones may come.
local function stored_states(request)
  local ready, delayed = shows(request, READY), shows(request, DELAYED)
  local leased, dead = shows(request, LEASED), shows(request, DEAD)
  return { [READY] = ready, [DELAYED] = ready or delayed, [LEASED] = ready or leased or dead, [DEAD] = dead,
    [IN_LANE] = shows(request, IN_LANE) }
end

local function by_id(one, other)
  return id_of(one) < id_of(other)
end

local function members_of_states(queue, request, stored)
  local members = {}
  for state, is_wanted in pairs(stored) do
    if is_wanted then
      local sets = state == LEASED and { queue.keys.leased } or sets_of(queue, state, request.kind, request.tags)
      for _, set in ipairs(sets) do
        for _, member in ipairs(call('ZRANGE', set, 0, -1)) do members[#members + 1] = member end
      end
    end
  end
  table.sort(members, by_id)
  return members
end

-- Try the ids from `after` on, in order; nil when the page is not full after a bounded number of them.
local function walk(queue, request, last_id)
  local page = {}
  for first = request.after + 1, request.after + IDS_WALKED, IDS_PER_READ do
    if first > last_id then return page end
    local members = {}
    for id = first, min(first + IDS_PER_READ - 1, last_id) do members[#members + 1] = member_of(id) end
    for index, body in ipairs(read_many('HMGET', queue.key, members)) do
      local task = body and shown(queue, request, members[index], body)
      if task then page[#page + 1] = task end
      if #page > request.limit then return page end
    end
  end
  return nil
end

-- Return the highest id that a task of the queue may have.
local function last_id_of(queue)
  local block = call('GET', queue.keys.block)
  if block then return parse('>I8', block) - 1 end
  return tonumber(call('GET', IDS) or 0)
end

-- Arguments: the request. Answers a page, or SPARSE: the caller must read pieces.
local function peek(keys, args)
  local request = parse_peek(args)
  local queue, refusal = read_queue(keys[1], request.now)
  if not queue then return refusal end
  local stored = stored_states(request)
  local number = 0
  for state, is_wanted in pairs(stored) do
    -- All leased tasks are read, as their tags are only in `held`.
    local kind, tags = request.kind, request.tags
    if state == LEASED then kind, tags = ANY_TAG, {} end
    if is_wanted then number = number + gauge(queue, state, kind, tags) end
  end
  if number <= SORTED_AT_MOST then
    return pack_page(page_of(queue, request, members_of_states(queue, request, stored)), request.limit)
  end
  local page = walk(queue, request, last_id_of(queue))
  return page and pack_page(page, request.limit) or SPARSE
end

local function unique(members)
  local kept, seen = {}, {}
  for _, member in ipairs(members) do
    if not seen[member] then kept[#kept + 1] = member end
    seen[member] = true
  end
  table.sort(kept, by_id)
  return kept
end

-- Arguments: the request; names. Answers a page.
local function peek_names(keys, args)
  local request = parse_peek(args)
  local queue, refusal = read_queue(keys[1], request.now)
  if not queue then return refusal end
  local members = {}
  for index = request.rest, #args do members[#members + 1] = names.member_of_name(queue, args[index]) end
  return pack_page(page_of(queue, request, unique(members)), request.limit)
end

-- Arguments: the request; ids, 8 bytes each. Answers a page.
local function peek_ids(keys, args)
  local request = parse_peek(args)
  local queue, refusal = read_queue(keys[1], request.now)
  if not queue then return refusal end
  local members, packed = {}, args[request.rest]
  for at = 1, #packed, 8 do members[#members + 1] = member_of((parse('>I8', packed, at))) end
  return pack_page(page_of(queue, request, unique(members)), request.limit)
end

-- Arguments: the request; a cursor ("0" begins). Answers the next cursor (8 bytes; 0: the end) and the lowest ids, at
-- most one more than a page, of the requested tasks in a piece of the queue.
local function peek_piece(keys, args)
  local request = parse_peek(args)
  local queue, refusal = read_queue(keys[1], request.now)
  if not queue then return refusal end
  request.payload_bytes = 0
  local answer = call('HSCAN', queue.key, args[request.rest], 'COUNT', IDS_PER_READ)
  local rows, members, bodies = answer[2], {}, {}
  for index = 1, #rows, 2 do
    if is_member(rows[index]) and id_of(rows[index]) > request.after then
      members[#members + 1] = rows[index]
      bodies[rows[index]] = rows[index + 1]
    end
  end
  table.sort(members, by_id)
  local ids = {}
  for _, member in ipairs(members) do
    if #ids > request.limit then break end
    if shown(queue, request, member, bodies[member]) then ids[#ids + 1] = pack('>I8', id_of(member)) end
  end
  return 'o\0' .. pack('>I8', tonumber(answer[1])) .. concat(ids)
end

reads('peek', peek)
reads('peek_names', peek_names)
reads('peek_ids', peek_ids)
reads('peek_piece', peek_piece)
