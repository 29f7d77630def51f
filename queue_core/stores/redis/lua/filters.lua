-- Tag filters: the sorted sets, counters and tags that they take; and a task as the reading verbs return it.

-- Return the sorted sets of ready tasks of a priority that a filter takes; for `oldest`, before its tag is chosen.
function ready_sets(queue, kind, tags, priority)
  local keys = at_priority(queue.keys, priority)
  if kind == NO_TAG then return { keys.ready } end
  if #tags == 0 then return { keys.ready, keys.ready_tagged } end
  local sets = {}
  for index, tag in ipairs(tags) do sets[index] = keys.ready_of .. tag end
  return sets
end

-- Return those of all priorities, the highest first.
function all_ready_sets(queue, kind, tags)
  if not queue.spec.has_priorities then return ready_sets(queue, kind, tags, 0) end
  local sets = {}
  for _, priority in ipairs(queue.spec.ranks) do
    for _, set in ipairs(ready_sets(queue, kind, tags, priority)) do sets[#sets + 1] = set end
  end
  return sets
end

-- Return the sorted sets of tasks that limits of their tags hold back.
local function held_sets(queue, kind, tags)
  if kind == NO_TAG then return {} end
  if #tags == 0 then return { queue.keys.held_all } end
  local sets = {}
  for _, priority in ipairs(queue.spec.ranks) do
    for _, tag in ipairs(tags) do sets[#sets + 1] = at_priority(queue.keys, priority).held_of .. tag end
  end
  return sets
end

-- Return the sorted sets that have all tasks of a state and of the tags that a filter takes.
function sets_of(queue, state, kind, tags)
  local keys = queue.keys
  if state == READY then return all_ready_sets(queue, kind, tags) end
  if state == IN_LANE then return held_sets(queue, kind, tags) end
  local all, untagged, of = keys.delayed_all, keys.delayed, keys.delayed_of
  if state == DEAD then all, untagged, of = keys.dead_all, keys.dead, keys.dead_of end
  if kind == NO_TAG then return { untagged } end
  if #tags == 0 then return { all } end
  local sets = {}
  for index, tag in ipairs(tags) do sets[index] = of .. tag end
  return sets
end

-- Return whether a filter takes a tag; `wanted` is its tags as a table.
function accepts(kind, wanted, tag)
  if kind == NO_TAG then return tag == '' end
  return not next(wanted) or wanted[tag] == true
end

function set_of(tags)
  local wanted = {}
  for _, tag in ipairs(tags) do wanted[tag] = true end
  return wanted
end

-- Return the fields whose counters together count the tasks that a filter takes.
function fields_of(kind, tags)
  if kind == NO_TAG then return { UNTAGGED } end
  if #tags == 0 then return { UNTAGGED, TAGGED } end
  local fields = {}
  for index, tag in ipairs(tags) do fields[index] = TAGGED .. tag end
  return fields
end

-- Return how many tasks of the tags that a filter takes are stored in a state.
function gauge(queue, counter, kind, tags)
  local fields = fields_of(kind, tags)
  local sum = 0
  for _, field in ipairs(fields) do sum = sum + (counts_for(queue, field)[counter] or 0) end
  return sum
end

local TASK = '>BI8I8I4I4'

-- Pack a task as it is stored, its payload cut to `payload_bytes`: state, id, eta, `held` ("" before the first lease; nil:
-- it is read), body, and the rare parts that `held` tells of, each behind its length.
function pack_task(queue, member, state, eta, body, payload_bytes, held)
  local _, _, is_long = heads_of(body)
  held = held or call('HGET', queue.key, AS_HELD .. member) or ''
  local heads_end = head_bytes(body)
  local payload = is_long and call('HGET', queue.keys.payloads, member) or sub(body, heads_end + 1)
  body = sub(body, 1, heads_end) .. sub(payload, 1, payload_bytes)
  local task = pack(TASK, state == IN_LANE and IN_LANE_STATE or state, id_of(member), eta, #held, #body) .. held .. body
  local flags = held ~= '' and byte(held, HELD_FLAGS) or 0
  if flags < HAS_ATTEMPTS then return task end
  for _, part in ipairs(parts_of(flags)) do
    local cell = call('HGET', queue.key, part .. member)
    task = task .. pack('>I4', #cell) .. cell
  end
  return task
end
