-- The rotation of a fair queue: each tag that has READY tasks has a place, a number that rises. A lease takes from the
-- tag whose first task has the highest priority, among those from the one with the lowest place, and puts it at the end.

local PIECE = 4                   -- tasks of a tag that are read at once

local function field_of(tag)
  return tag == '' and UNTAGGED or TAGGED .. tag
end

local function tag_of(field)
  return sub(field, 2)            -- the untagged have a field of one character
end

local function ready_set_of(queue, field, priority)
  local keys = at_priority(queue.keys, priority)
  return field == UNTAGGED and keys.ready or keys.ready_of .. tag_of(field)
end

-- Return priority, eta and member of the first READY task of a tag that has some.
local function first_of(queue, field)
  for _, priority in ipairs(queue.spec.ranks) do
    local rows = call('ZRANGE', ready_set_of(queue, field, priority), '0', '0', 'WITHSCORES')
    if #rows > 0 then return { field = field, priority = priority, eta = tonumber(rows[2]), member = rows[1] } end
  end
end

local function is_first(one, other)
  if one.priority ~= other.priority then return one.priority > other.priority end
  return is_before(one.eta, one.member, other.eta, other.member)
end

local function leave(queue, field, counts)
  later(queue, 'ZREM', at_priority(queue.keys, counts[AT_RANK]).rotation, field)
end

local function place(queue, field, counts, priority)
  counts[AT_RANK], counts[IS_CHANGED] = priority, true
  later(queue, 'ZADD', at_priority(queue.keys, priority).rotation, text_of(counts[AT_PLACE]), field)
end

local function next_place(queue)
  local all = counts_for(queue, TAGGED)
  all[AT_PLACE], all[IS_CHANGED] = all[AT_PLACE] + 1, true
  return all[AT_PLACE]
end

-- Put the tags of leased tasks, in order, at the end; their entries are written by `rotation.update`.
function rotation.put_last(queue, tags)
  for _, tag in ipairs(tags) do
    local counts = counts_for(queue, field_of(tag))
    if counts[AT_PLACE] > 0 then counts[AT_PLACE], counts[IS_CHANGED] = next_place(queue), true end
  end
end

-- Take tags without READY tasks out, put those that have some again at the end, in the order of their first tasks.
function rotation.update(queue, touched)
  local new = {}
  flush(queue)
  for tag in pairs(touched) do
    local field = field_of(tag)
    local counts = counts_for(queue, field)
    if counts[READY] == 0 then
      if counts[AT_PLACE] > 0 then leave(queue, field, counts) end
      if counts[AT_PLACE] > 0 then counts[AT_PLACE], counts[IS_CHANGED] = 0, true end
    elseif counts[AT_PLACE] == 0 then
      new[#new + 1] = first_of(queue, field)
    else
      local priority = queue.spec.has_priorities and first_of(queue, field).priority or 0
      if priority ~= counts[AT_RANK] then leave(queue, field, counts) end
      place(queue, field, counts, priority)
    end
  end
  table.sort(new, is_first)
  for _, first in ipairs(new) do
    local counts = counts_for(queue, first.field)
    counts[AT_PLACE] = next_place(queue)
    place(queue, first.field, counts, first.priority)
  end
end

-- Forget all places: the queue is no longer fair.
function rotation.clear(queue, tags)
  for _, priority in ipairs(queue.spec.ranks) do call('UNLINK', at_priority(queue.keys, priority).rotation) end
  local fields = { UNTAGGED }
  for index, tag in ipairs(tags) do fields[index + 1] = TAGGED .. tag end
  for _, field in ipairs(fields) do
    local counts = counts_for(queue, field)
    if counts[AT_PLACE] > 0 then counts[AT_PLACE], counts[AT_RANK], counts[IS_CHANGED] = 0, 0, true end
  end
end

-- Move a cursor over the READY tasks of a tag to the next one. Returns its index among the priorities; nil: the end.
local function rank_of_next(queue, cursor, horizon)
  local ranks = queue.spec.ranks
  while cursor.rank <= #ranks do
    if cursor.at <= #cursor.rows then return cursor.rank end
    if cursor.is_last then
      cursor.rank, cursor.read, cursor.is_last = cursor.rank + 1, 0, false
    else
      local set = ready_set_of(queue, cursor.field, ranks[cursor.rank])
      local rows = call('ZRANGE', set, text_of(cursor.read), text_of(cursor.read + PIECE - 1), 'WITHSCORES')
      cursor.rows, cursor.at, cursor.read = leasing.within(rows, horizon), 1, cursor.read + PIECE
      cursor.is_last = #cursor.rows < 2 * PIECE
    end
  end
  return nil
end

-- Return the fields of tags by the index of their priority, each list in the order of places. A batch of `count` needs
-- no more than as many of each.
local function lines_of(queue, tags, count)
  local lines, ranks = {}, queue.spec.ranks
  if #tags == 0 then
    for rank, priority in ipairs(ranks) do
      lines[rank] = call('ZRANGE', at_priority(queue.keys, priority).rotation, '0', text_of(count - 1))
    end
    return lines
  end
  local by_priority = {}
  for rank, priority in ipairs(ranks) do
    lines[rank] = {}
    by_priority[priority] = lines[rank]
  end
  for _, tag in ipairs(tags) do
    local counts = counts_for(queue, TAGGED .. tag)
    local line = counts[AT_PLACE] > 0 and by_priority[counts[AT_RANK]]
    if line then line[#line + 1] = TAGGED .. tag end
  end
  for _, line in ipairs(lines) do
    table.sort(line, function(one, other)
      return counts_for(queue, one)[AT_PLACE] < counts_for(queue, other)[AT_PLACE]
    end)
  end
  return lines
end

-- Return up to `count` tasks that may be leased, members and etas in turn; for `oldest` those of the first tag.
function rotation.first_tasks(queue, request, horizon)
  local kind, count, rows = request.kind, request.count, {}
  if kind == NO_TAG then return leasing.first_in_order(queue, kind, NOTHING, count, horizon) end
  local lines = lines_of(queue, request.tags, count)
  for rank = 1, #lines do
    local line, at = lines[rank], 1
    while line[at] and #rows < 2 * count do
      local cursor = line[at]
      if type(cursor) == 'string' then
        if kind == OLDEST_TAG then
          local tag = tag_of(cursor)
          return leasing.first_in_order(queue, tag == '' and NO_TAG or SOME_TAGS, tag ~= '' and { tag } or {}, count, horizon)
        end
        cursor = { field = cursor, rank = rank, read = 0, rows = {}, at = 1, is_last = false }
      end
      if rank_of_next(queue, cursor, horizon) == rank then
        rows[#rows + 1], rows[#rows + 2] = cursor.rows[cursor.at], cursor.rows[cursor.at + 1]
        cursor.at = cursor.at + 2
      end
      local following = rank_of_next(queue, cursor, horizon)
      if following then lines[following][#lines[following] + 1] = cursor end
      at = at + 1
    end
  end
  return rows
end
