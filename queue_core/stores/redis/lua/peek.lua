-- The peek verb: tasks by id, in their settled states. Nothing keeps the ids of a queue in order, so a page is found
-- in one of three ways: few tasks are read and sorted; many are met by going through the ids; or, when the ids are
-- sparse, the caller asks for all bodies a piece at a time, and for the tasks of the least ids then.

local SORTED_AT_MOST = 5000
local IDS_WALKED = 10000
local IDS_PER_READ = 1000
local SPARSE = 's'

-- The state of a task as of now; nil when time has deleted it.
local function settled_state(queue, state, eta, held)
  if eta > queue.now then return state end
  if state == DELAYED then return READY end
  if state == LEASED then
    if not is_exhausted(queue, held) then return READY end
    return not queue.spec.deletes_exhausted and DEAD or nil
  end
  return state
end

-- What is asked: kind of filter, tags, states (a number for each, as bits), the id to go on after, limit, payload
-- bytes.
local function parse_look(args)
  local now, kind, states, after, limit, payload_bytes, tag_count = parse('>I8BBI8I4I4I2', args[1])
  local tags = { unpack(args, 2, 1 + tag_count) }
  return {
    now = now, kind = kind, states = states, after = after, limit = limit, payload_bytes = payload_bytes,
    tags = tags, wanted = set_of(tags), rest = 2 + tag_count
  }
end

local function shows(look, state)
  return state ~= nil and is_set(look.states, 2 ^ (state - 1))
end

-- The task of a body, packed, if it is among those asked for.
local function shown(queue, look, member, body)
  local tag = heads_of(body)
  if id_of(member) <= look.after or not accepts(look.kind, look.wanted, tag) then return nil end
  local state, eta = place_of(queue, tag, member)
  local held = state == LEASED and parse_held(call('HGET', queue.key, AS_HELD .. member))
  if not state or not shows(look, settled_state(queue, state, eta, held)) then return nil end
  return pack_task(queue, member, state, eta, body, look.payload_bytes)
end

-- The first tasks asked for among these members, in order; one more than a page if there is one.
local function page_of(queue, look, members)
  local page = {}
  for first = 1, #members, IDS_PER_READ do
    local some = { unpack(members, first, min(first + IDS_PER_READ - 1, #members)) }
    for index, body in ipairs(read_many('HMGET', queue.key, some)) do
      local task = body and shown(queue, look, some[index], body)
      if task then page[#page + 1] = task end
      if #page > look.limit then return page end
    end
  end
  return page
end

-- An answer: 1 when there are more, then the tasks.
local function pack_page(page, limit)
  local has_more = #page > limit
  if has_more then page[#page] = nil end
  return 'o' .. char(has_more and 1 or 0) .. concat(page)
end

-- The states as they are stored from which the settled ones may come.
local function stored_states(look)
  local ready, delayed, leased, dead = shows(look, READY), shows(look, DELAYED), shows(look, LEASED), shows(look, DEAD)
  return { [READY] = ready, [DELAYED] = ready or delayed, [LEASED] = ready or leased or dead, [DEAD] = dead }
end

local function by_id(one, other)
  return id_of(one) < id_of(other)
end

local function members_of_states(queue, look, stored)
  local members = {}
  for state, is_asked in pairs(stored) do
    if is_asked then
      local sets = state == LEASED and { queue.keys.leased } or sets_of(queue, state, look.kind, look.tags)
      for _, set in ipairs(sets) do
        for _, member in ipairs(call('ZRANGE', set, 0, -1)) do members[#members + 1] = member end
      end
    end
  end
  table.sort(members, by_id)
  return members
end

-- Go through the ids from `after` on, in order; nil when the page is not full after so many of them.
local function walk(queue, look, last_id)
  local page = {}
  for first = look.after + 1, look.after + IDS_WALKED, IDS_PER_READ do
    if first > last_id then return page end
    local members = {}
    for id = first, min(first + IDS_PER_READ - 1, last_id) do members[#members + 1] = member_of(id) end
    for index, body in ipairs(read_many('HMGET', queue.key, members)) do
      local task = body and shown(queue, look, members[index], body)
      if task then page[#page + 1] = task end
      if #page > look.limit then return page end
    end
  end
  return nil
end

-- The highest id that a task of the queue may have.
local function last_id_of(queue)
  local block = call('GET', queue.keys.block)
  if block then return parse('>I8', block) - 1 end
  return tonumber(call('GET', IDS) or 0)
end

-- Arguments: the look. Answers a page, or SPARSE: then ask for pieces.
local function peek(keys, args)
  local look = parse_look(args)
  local queue, refusal = look_at(keys[1], look.now)
  if not queue then return refusal end
  local stored = stored_states(look)
  local number = 0
  for state, is_asked in pairs(stored) do
    -- Leased tasks are all read, as only their `held` tells their tags.
    local kind, tags = look.kind, look.tags
    if state == LEASED then kind, tags = ANY_TAG, {} end
    if is_asked then number = number + gauge(queue, state, kind, tags) end
  end
  if number <= SORTED_AT_MOST then
    return pack_page(page_of(queue, look, members_of_states(queue, look, stored)), look.limit)
  end
  local page = walk(queue, look, last_id_of(queue))
  return page and pack_page(page, look.limit) or SPARSE
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

-- Arguments: the look; names. Answers a page.
local function peek_names(keys, args)
  local look = parse_look(args)
  local queue, refusal = look_at(keys[1], look.now)
  if not queue then return refusal end
  local members = {}
  for index = look.rest, #args do members[#members + 1] = member_of_name(queue, args[index]) end
  return pack_page(page_of(queue, look, unique(members)), look.limit)
end

-- Arguments: the look; ids, 8 bytes each. Answers a page.
local function peek_ids(keys, args)
  local look = parse_look(args)
  local queue, refusal = look_at(keys[1], look.now)
  if not queue then return refusal end
  local members, packed = {}, args[look.rest]
  for at = 1, #packed, 8 do members[#members + 1] = member_of((parse('>I8', packed, at))) end
  return pack_page(page_of(queue, look, unique(members)), look.limit)
end

-- Arguments: the look; a cursor ("0" begins). Answers the next cursor (8 bytes; 0: the end) and the least ids, one more
-- than a page at most, of those tasks that are asked for in a piece of the queue.
local function peek_piece(keys, args)
  local look = parse_look(args)
  local queue, refusal = look_at(keys[1], look.now)
  if not queue then return refusal end
  look.payload_bytes = 0
  local answer = call('HSCAN', queue.key, args[look.rest], 'COUNT', IDS_PER_READ)
  local rows, members, bodies = answer[2], {}, {}
  for index = 1, #rows, 2 do
    if is_member(rows[index]) and id_of(rows[index]) > look.after then
      members[#members + 1] = rows[index]
      bodies[rows[index]] = rows[index + 1]
    end
  end
  table.sort(members, by_id)
  local ids = {}
  for _, member in ipairs(members) do
    if #ids > look.limit then break end
    if shown(queue, look, member, bodies[member]) then ids[#ids + 1] = pack('>I8', id_of(member)) end
  end
  return 'o\0' .. pack('>I8', tonumber(answer[1])) .. concat(ids)
end

looks('peek', peek)
looks('peek_names', peek_names)
looks('peek_ids', peek_ids)
looks('peek_piece', peek_piece)
