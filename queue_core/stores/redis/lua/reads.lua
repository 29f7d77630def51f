-- The verbs that only read. Exact as of `now`, although they write no expiry: due tasks count in their new state.

local HEAD = 1000              -- etas of the ready queue that are read for `waiting`
local POINTS = 8               -- positions of it in an answer: see stats.positions_of
local NONE = 0                 -- stands for no instant

-- Return the due leased tasks, soonest first, with the facts that a filter needs.
local function due_leased(queue)
  local due = {}
  local rows = call('ZRANGEBYSCORE', queue.keys.leased, '-inf', queue.at, 'WITHSCORES')
  local members = {}
  for index = 1, #rows, 2 do members[#members + 1] = rows[index] end
  local packed = read_many('HMGET', queue.key, held_fields(members))
  for index, member in ipairs(members) do
    local held = parse_held(packed[index])
    due[index] = {
      member = member, eta = tonumber(rows[2 * index]), tag = held.tag, priority = held.priority,
      is_over = is_exhausted(queue, held)
    }
  end
  return due
end

-- Return how many due leased tasks these tags have, how many of them die, and the first eta of the others. If none can
-- die, the whole queue is counted without reading each.
local function due_counts(queue, due, kind, tags)
  local wanted = set_of(tags)
  local number, gone, first = 0, 0, NONE
  for _, task in ipairs(due) do
    if accepts(kind, wanted, task.tag) then
      number = number + 1
      if task.is_over then
        gone = gone + 1
      elseif first == NONE then
        first = task.eta
      end
    end
  end
  return number, gone, first
end

local function first_of(set)
  local rows = call('ZRANGE', set, '0', '0', 'WITHSCORES')
  return rows[2] and tonumber(rows[2]) or NONE, rows[1]
end

local function earliest(one, other)
  if one == NONE then return other end
  if other == NONE then return one end
  return min(one, other)
end

local function sum_counts(queue, kind, tags)
  local fields = fields_of(kind, tags)
  local sums = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, [IN_LANE] = 0 }
  for _, field in ipairs(fields) do
    local counts = counts_for(queue, field)
    for counter = 1, COUNTERS do sums[counter] = sums[counter] + counts[counter] end
    sums[IN_LANE] = sums[IN_LANE] + (counts[IN_LANE] or 0)
  end
  return sums
end

-- Return the counters as of now, and the eta of the oldest ready task. `due` is the result of `due_leased`, if known.
local function counts_now(queue, kind, tags, due)
  local sums = sum_counts(queue, kind, tags)
  local oldest = NONE
  if sums[READY] > 0 then
    for _, set in ipairs(all_ready_sets(queue, kind, tags)) do oldest = earliest(oldest, (first_of(set))) end
  end
  if sums[DELAYED] > 0 then
    for _, set in ipairs(sets_of(queue, DELAYED, kind, tags)) do
      local number = call('ZCOUNT', set, '-inf', queue.at)
      if number > 0 then
        sums[READY], sums[DELAYED] = sums[READY] + number, sums[DELAYED] - number
        oldest = earliest(oldest, (first_of(set)))
      end
    end
  end
  if sums[LEASED] > 0 then
    local number, gone, first
    if not due and kind ~= NO_TAG and #tags == 0 and not queue.spec.most_leases
      and call('HEXISTS', queue.key, HAS_BOUNDS) == 0 then
      number, gone, first = call('ZCOUNT', queue.keys.leased, '-inf', queue.at), 0, NONE
      if number > 0 then first = first_of(queue.keys.leased) end
    else
      number, gone, first = due_counts(queue, due or due_leased(queue), kind, tags)
    end
    sums[READY], sums[LEASED] = sums[READY] + number - gone, sums[LEASED] - number
    sums[EXPIRED_TOTAL], sums[DIED_TOTAL] = sums[EXPIRED_TOTAL] + number, sums[DIED_TOTAL] + gone
    if not queue.spec.deletes_exhausted then sums[DEAD] = sums[DEAD] + gone end
    oldest = earliest(oldest, first)
  end
  return sums, oldest
end

-- Return how many leases limits of the whole queue let it grant now; -1: it has none.
local function room_now(queue)
  if not queue.spec.room then return -1 end
  if not queue.room_known then
    local over = call('ZCOUNT', queue.keys.leased, '-inf', queue.at)
    queue.room_known = lanes.room(queue, over)
  end
  return queue.room_known
end

local function pack_counts(queue, sums, oldest)
  local is_closed = queue.spec.is_paused or queue.spec.moved_to ~= ''
  return pack(COUNTS, sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7], sums[8], sums[9], sums[10], oldest)
    .. pack('>BI6i8', is_closed and 1 or 0, sums[IN_LANE], room_now(queue))
end

-- Arguments: now, kind of filter; tags.
local function stats(keys, args)
  local now, kind = parse('>I8B', args[1])
  local queue, refusal = read_queue(keys[1], now)
  if not queue then return refusal end
  return 'o\0' .. pack_counts(queue, counts_now(queue, kind, { unpack(args, 2) }))
end

-- Arguments: now, limit, 1 when the untagged come first; the tag to go on after ("" is none). Answers a length and a
-- tag ("" is none) before each tag's counts.
local function tag_stats(keys, args)
  local now, limit, untagged = parse('>I8I4B', args[1])
  local queue, refusal = read_queue(keys[1], now)
  if not queue then return refusal end
  local tags = {}
  if untagged == 1 and queue.packed_untagged then tags[1] = '' end
  local from = args[2] == '' and '-' or '(' .. args[2]
  for _, tag in ipairs(call('ZRANGEBYLEX', queue.keys.tags, from, '+', 'LIMIT', 0, limit - #tags)) do
    tags[#tags + 1] = tag
  end
  local due, parts = due_leased(queue), {}
  for index, tag in ipairs(tags) do
    local kind = tag == '' and NO_TAG or SOME_TAGS
    parts[index] = pack('>I2', #tag) .. tag
      .. pack_counts(queue, counts_now(queue, kind, tag == '' and {} or { tag }, due))
  end
  return 'o\0' .. concat(parts)
end

-- Return the first delayed tasks of a set that are due, each with its priority; all of them in a queue with priorities,
-- as far as `waiting` reads, since any may have the highest.
local function due_delayed(queue, set)
  local most = queue.spec.has_priorities and HEAD or 1
  local rows = call('ZRANGEBYSCORE', set, '-inf', queue.at, 'WITHSCORES', 'LIMIT', '0', text_of(most))
  local due = {}
  for index = 1, #rows, 2 do
    local priority = 0
    if queue.spec.has_priorities then priority = select(4, heads_of(call('HGET', queue.key, rows[index]))) end
    due[#due + 1] = { member = rows[index], eta = tonumber(rows[index + 1]), priority = priority }
  end
  return due
end

-- Return the tag of the first leasable task, settled or not; nil: there is none.
local function oldest_tag(queue, tags, due)
  local best_rank, best_eta, best_member, best_tag
  local function offer(priority, eta, member, tag)
    if not best_eta or priority > best_rank
      or (priority == best_rank and is_before(eta, member, best_eta, best_member)) then
      best_rank, best_eta, best_member, best_tag = priority, eta, member, tag
    end
  end
  for _, priority in ipairs(queue.spec.ranks) do
    for _, set in ipairs(ready_sets(queue, OLDEST_TAG, tags, priority)) do
      local eta, member = first_of(set)
      if member then offer(priority, eta, member) end
    end
  end
  for _, set in ipairs(sets_of(queue, DELAYED, OLDEST_TAG, tags)) do
    for _, task in ipairs(due_delayed(queue, set)) do offer(task.priority, task.eta, task.member) end
  end
  local wanted = set_of(tags)
  for _, task in ipairs(due) do
    if not task.is_over and accepts(OLDEST_TAG, wanted, task.tag) then
      offer(task.priority, task.eta, task.member, task.tag)
    end
  end
  if best_member and not best_tag then best_tag = heads_of(call('HGET', queue.key, best_member)) end
  return best_tag
end

local function offer_etas(etas, rows)
  for index = 2, #rows, 2 do etas[#etas + 1] = tonumber(rows[index]) end
end

-- Return the etas at a few evenly spread positions of one sorted set, as every rank costs the same.
local function at_positions(set, ready)
  local points, parts = min(POINTS, ready), {}
  for index = 1, points do
    local position = 1 + floor((ready - 1) * (index - 1) / max(1, points - 1))
    local rank = text_of(position - 1)
    parts[index] = pack('>I8I8', position, tonumber(call('ZRANGE', set, rank, rank, 'WITHSCORES')[2]))
  end
  return concat(parts)
end

-- Return the first etas of several sets and of the due tasks, in order, and the newest eta of all.
local function first_etas(queue, sets, kind, tags, due)
  local etas, newest = {}, 0
  offer_etas(etas, leasing.first_ready(sets, HEAD))
  for _, set in ipairs(sets) do
    newest = max(newest, tonumber(call('ZRANGE', set, '-1', '-1', 'WITHSCORES')[2] or 0))
  end
  for _, set in ipairs(sets_of(queue, DELAYED, kind, tags)) do
    offer_etas(etas, call('ZRANGEBYSCORE', set, '-inf', queue.at, 'WITHSCORES', 'LIMIT', '0', text_of(HEAD)))
    local last = call('ZREVRANGEBYSCORE', set, queue.at, '-inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    newest = max(newest, tonumber(last or 0))
  end
  local wanted = set_of(tags)
  for _, task in ipairs(due) do
    if not task.is_over and accepts(kind, wanted, task.tag) then
      etas[#etas + 1] = task.eta
      newest = max(newest, task.eta)
    end
  end
  table.sort(etas)
  return etas, newest
end

-- Arguments: now, kind of filter; tags. Answers, behind a 1, positions and etas in turn; or, behind a 0, the number of
-- ready tasks, the newest eta of them and the first etas.
local function waiting(keys, args)
  local now, kind = parse('>I8B', args[1])
  local queue, refusal = read_queue(keys[1], now)
  if not queue then return refusal end
  local tags, due = { unpack(args, 2) }, due_leased(queue)
  if kind == OLDEST_TAG and not queue.spec.is_fair then
    local tag = oldest_tag(queue, tags, due)
    if not tag then return 'o\1' end
    kind, tags = tag == '' and NO_TAG or SOME_TAGS, tag == '' and {} or { tag }
  end
  local ready = counts_now(queue, kind, tags, due)[READY]
  local stored, full = 0, nil
  local sets = all_ready_sets(queue, kind, tags)
  for _, set in ipairs(sets) do
    local size = call('ZCARD', set)
    stored = stored + size
    if size == ready then full = set end
  end
  if ready == 0 then return 'o\1' end
  if full and stored == ready then return 'o\1' .. at_positions(full, ready) end
  local etas, newest = first_etas(queue, sets, kind, tags, due)
  local parts = {}
  for index = 1, min(HEAD, #etas) do parts[index] = pack('>I8', etas[index]) end
  return 'o\0' .. pack('>I8I8', ready, newest) .. concat(parts)
end

-- Arguments: now, until, limit, kind of filter; tags. Answers etas, in order, of delayed tasks that were never leased.
local function upcoming(keys, args)
  local now, till, limit, kind = parse('>I8I8I4B', args[1])
  local queue, refusal = read_queue(keys[1], now)
  if not queue then return refusal end
  local etas, most = {}, text_of(limit)
  for _, set in ipairs(sets_of(queue, DELAYED, kind, { unpack(args, 2) })) do
    local rows = call('ZRANGEBYSCORE', set, '(' .. queue.at, text_of(till), 'WITHSCORES', 'LIMIT', '0', most)
    local members = {}
    for index = 1, #rows, 2 do members[#members + 1] = rows[index] end
    local held = read_many('HMGET', queue.key, held_fields(members))
    for index = 1, #members do
      -- A task that was never leased has such a field only for a bound of leases of its own.
      if not held[index] or parse_held(held[index]).leases == 0 then etas[#etas + 1] = tonumber(rows[2 * index]) end
    end
  end
  table.sort(etas)
  local parts = {}
  for index = 1, min(limit, #etas) do parts[index] = pack('>I8', etas[index]) end
  return 'o\0' .. concat(parts)
end

-- Arguments: now, limit. Answers eta, lengths and `held` of each lease.
local function live_leases(keys, args)
  local now, limit = parse('>I8I4', args[1])
  local queue, refusal = read_queue(keys[1], now)
  if not queue then return refusal end
  local rows = call('ZRANGEBYSCORE', queue.keys.leased, '(' .. text_of(now), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  local members, parts = {}, {}
  for index = 1, #rows, 2 do members[#members + 1] = rows[index] end
  local held = read_many('HMGET', queue.key, held_fields(members))
  for index, member in ipairs(members) do
    parts[index] = pack('>I8I8I4', id_of(member), tonumber(rows[2 * index]), #held[index]) .. held[index]
  end
  return 'o\0' .. concat(parts)
end

-- Arguments: now. Answers an instant, 0 for none.
local function next_eta(keys, args)
  local queue, refusal = read_queue(keys[1], 0)
  if not queue then return refusal end
  if queue.spec.moved_to ~= '' then return 'o\0' .. pack('>I8', NONE) end
  local eta = earliest((first_of(queue.keys.delayed_all)), (first_of(queue.keys.leased)))
  if queue.spec.lane and queue.spec.lane.interval then eta = earliest(eta, (first_of(queue.keys.opens))) end
  if queue.spec.room and gauge(queue, READY, ANY_TAG, NOTHING) > 0 then
    queue.now = parse('>I8', args[1])
    eta = earliest(eta, lanes.next_token(queue) or NONE)
  end
  return 'o\0' .. pack('>I8', eta)
end

reads('stats', stats)
reads('tag_stats', tag_stats)
reads('waiting', waiting)
reads('upcoming', upcoming)
reads('live_leases', live_leases)
reads('next_eta', next_eta)
