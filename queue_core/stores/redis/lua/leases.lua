-- The lease verb: settle, find the tasks in order, take them.

local LEASE_REQUEST = '>I8i8dI2BI4I4B'
local WORKER_TIMES = '>I8I8'                       -- first seen, retired; 0: never

local function times_of(packed)
  if not packed then return nil, nil end
  local seen_at, retired_at = parse(WORKER_TIMES, packed)
  return seen_at > 0 and seen_at or nil, retired_at > 0 and retired_at or nil
end

-- Return when a worker was first seen by a queue, and when it was retired, if it was.
function leasing.worker_of(queue, worker)
  return times_of(call('HGET', queue.key, AS_WORKER .. worker))
end

function leasing.known_worker(queue)
  return times_of(queue.cells_read[READ])
end

function leasing.keep_worker(queue, worker, seen_at, retired_at)
  call('HSET', queue.key, AS_WORKER .. worker, pack(WORKER_TIMES, seen_at or 0, retired_at or 0))
  call('ZADD', queue.keys.workers, text_of(retired_at or seen_at), worker)
end

-- Forget a few workers that were not active for a month and, of too many, any few that are not retired: one that goes on
-- is seen anew.
local function forget_workers(queue, newest)
  local old = text_of(queue.now - FORGOTTEN_AFTER)
  for _, worker in ipairs(call('ZRANGEBYSCORE', queue.keys.workers, '-inf', old, 'LIMIT', '0', WORKERS_EXAMINED)) do
    call('HDEL', queue.key, AS_WORKER .. worker)
    call('ZREM', queue.keys.workers, worker)
  end
  if call('ZCARD', queue.keys.workers) <= MOST.workers then return end
  for _, worker in ipairs(call('ZRANDMEMBER', queue.keys.workers, WORKERS_EXAMINED)) do
    local _, retired_at = leasing.worker_of(queue, worker)
    if worker ~= newest and not retired_at then
      call('HDEL', queue.key, AS_WORKER .. worker)
      call('ZREM', queue.keys.workers, worker)
    end
  end
end

-- Keep the tasks before the first due task that was not settled.
function leasing.within(rows, horizon)
  if not horizon then return rows end
  local kept = {}
  for index = 1, #rows, 2 do
    if not is_before(tonumber(rows[index + 1]), rows[index], horizon.eta, horizon.member) then break end
    kept[index], kept[index + 1] = rows[index], rows[index + 1]
  end
  return kept
end

-- Merge several sorted sets, each read a piece at a time: up to `count` members and scores in turn.
local function merged(sets, count)
  local piece = max(4, floor(2 * count / #sets))
  local heads = {}
  for _, key in ipairs(sets) do
    local rows = call('ZRANGE', key, 0, piece - 1, 'WITHSCORES')
    if #rows > 0 then heads[#heads + 1] = { key = key, rows = rows, at = 1, next = piece } end
  end
  local taken = {}
  while #taken < 2 * count and #heads > 0 do
    local best = 1
    for index = 2, #heads do
      local head, first = heads[index], heads[best]
      if is_before(tonumber(head.rows[head.at + 1]), head.rows[head.at],
        tonumber(first.rows[first.at + 1]), first.rows[first.at]) then
        best = index
      end
    end
    local head = heads[best]
    taken[#taken + 1] = head.rows[head.at]
    taken[#taken + 1] = head.rows[head.at + 1]
    head.at = head.at + 2
    if head.at > #head.rows then
      head.rows = #head.rows == 2 * piece
        and call('ZRANGE', head.key, head.next, head.next + piece - 1, 'WITHSCORES') or {}
      head.at, head.next = 1, head.next + piece
      if #head.rows == 0 then table.remove(heads, best) end
    end
  end
  return taken
end

-- Return the first `count` ready tasks of some sorted sets: members and scores in turn.
function leasing.first_ready(sets, count)
  if #sets == 1 then return call('ZRANGE', sets[1], '0', text_of(count - 1), 'WITHSCORES') end
  if #sets > 2 then return merged(sets, count) end
  local one = call('ZRANGE', sets[1], '0', text_of(count - 1), 'WITHSCORES')
  local other = call('ZRANGE', sets[2], '0', text_of(count - 1), 'WITHSCORES')
  if #other == 0 then return one end
  if #one == 0 then return other end
  local rows, o, t = {}, 1, 1
  for index = 1, min(2 * count, #one + #other), 2 do
    local eta, other_eta = tonumber(one[o + 1]), tonumber(other[t + 1])
    if not other_eta or (eta and is_before(eta, one[o], other_eta, other[t])) then
      rows[index], rows[index + 1] = one[o], one[o + 1]
      o = o + 2
    else
      rows[index], rows[index + 1] = other[t], other[t + 1]
      t = t + 2
    end
  end
  return rows
end

-- Return which of the two sets that have all tasks are not empty, by the counters.
local function full_sets(queue)
  if counts_for(queue, TAGGED)[READY] == 0 then return { queue.keys.ready } end
  if counts_for(queue, UNTAGGED)[READY] == 0 then return { queue.keys.ready_tagged } end
  return { queue.keys.ready, queue.keys.ready_tagged }
end

-- Return the first `count` ready tasks of a filter in the order of leases, members and etas in turn.
function leasing.first_in_order(queue, kind, tags, count, horizon)
  local rows = {}
  for _, priority in ipairs(queue.spec.ranks) do
    local some = leasing.first_ready(ready_sets(queue, kind, tags, priority), count - #rows / 2)
    for _, cell in ipairs(leasing.within(some, horizon)) do rows[#rows + 1] = cell end
    if #rows >= 2 * count then break end
  end
  return rows
end

-- Return the same for a lease from a queue whose tasks have priorities; for `oldest`, those of the first one's tag.
local function by_priority(queue, request, horizon)
  local kind, tags = request.kind, request.tags
  if kind == OLDEST_TAG then
    local first = leasing.first_in_order(queue, kind, tags, 1)
    if #first == 0 then return first end
    local tag = heads_of(call('HGET', queue.key, first[1]))
    kind, tags = tag == '' and NO_TAG or SOME_TAGS, tag ~= '' and { tag } or {}
  end
  return leasing.first_in_order(queue, kind, tags, request.count, horizon)
end

-- Return up to `count` tasks that may be leased, members and etas in turn; and the set from which they were popped, if
-- they were. Tasks of one set are, unless a due task that was not settled may come before them.
local function candidates(queue, request, horizon)
  if queue.spec.is_fair then return rotation.first_tasks(queue, request, horizon) end
  if queue.spec.has_priorities then return by_priority(queue, request, horizon) end
  local kind, tags, count = request.kind, request.tags, request.count
  local sets = kind ~= NO_TAG and #tags == 0 and full_sets(queue) or ready_sets(queue, kind, tags, 0)
  if kind == OLDEST_TAG then
    local first = leasing.first_ready(sets, 1)
    if #first == 0 then return first end
    local tag = heads_of(call('HGET', queue.key, first[1]))
    sets = { tag == '' and queue.keys.ready or queue.keys.ready_of .. tag }
  end
  if horizon then return leasing.within(leasing.first_ready(sets, count), horizon) end
  if #sets > 1 then return leasing.first_ready(sets, count) end
  return call('ZPOPMIN', sets[1], text_of(count)), sets[1]
end

local function count_leased(queue, tag, number)
  local all, counts = counters_of(queue, tag)
  all[READY], all[LEASED], all[LEASES] = all[READY] - number, all[LEASED] + number, all[LEASES] + number
  if not counts then return end
  counts[READY], counts[LEASED], counts[LEASES] =
    counts[READY] - number, counts[LEASED] + number, counts[LEASES] + number
end

-- Take tasks of a priority out of the sets of READY ones, as far as one set has not popped them; count them as leased.
local function leave_ready(queue, keys, untagged, tagged, of_tag, popped)
  if #untagged > 0 then
    if popped ~= keys.ready then call_many('ZREM', keys.ready, untagged) end
    count_leased(queue, '', #untagged)
  end
  if tagged then
    if popped ~= keys.ready_tagged then call_many('ZREM', keys.ready_tagged, tagged) end
    for tag, members in pairs(of_tag) do
      if popped ~= keys.ready_of .. tag then call_many('ZREM', keys.ready_of .. tag, members) end
      count_leased(queue, tag, #members)
    end
  end
end

-- Collect a task that has a priority, by that.
local function collect(ranked, priority, tag, member)
  local own = ranked[priority]
  if not own then
    own = { untagged = {}, tagged = false, of_tag = {} }
    ranked[priority] = own
  end
  if tag == '' then
    own.untagged[#own.untagged + 1] = member
    return
  end
  own.tagged = own.tagged or {}
  own.tagged[#own.tagged + 1] = member
  own.of_tag[tag] = own.of_tag[tag] or {}
  own.of_tag[tag][#own.of_tag[tag] + 1] = member
end

-- Put popped tasks back into their set, from a place in `rows` on.
local function put_back(set, rows, from)
  local back = {}
  for at = from, #rows, 2 do
    back[#back + 1], back[#back + 2] = text_of(tonumber(rows[at + 1])), rows[at]
  end
  call_many('ZADD', set, back)
end

-- Lease these tasks (members and etas in turn), which one set has popped already, as long as there is room for them
-- (nil: no bound). Returns the leases as their holder gets them and, shorter, as they are kept for a repeated call: id
-- and `leased_at`.
local function take(queue, rows, popped, worker, lease_us, room)
  local keys, now = queue.keys, queue.now
  local fields = {}
  for index = 1, #rows, 2 do fields[index], fields[index + 1] = rows[index], AS_HELD .. rows[index] end
  local cells = read_many('HMGET', queue.key, fields)
  local end_at = now + lease_us
  local end_text = text_of(end_at)
  local leases, kept, leased = {}, {}, {}
  local untagged, tagged, of_tag = {}, nil, nil
  local ranked, taken = nil, queue.touched and {}
  local total = 0
  for at = 1, #rows, 2 do
    local member, body, held = rows[at], cells[at], cells[at + 1]
    local tag, name, is_long, priority = heads_of(body)
    local payload = ''
    if room then
      -- A long payload is measured before it is read: one that does not fit stays where it is.
      total = total + #body + #tag + #name - head_bytes(body) + room.each
        + (is_long and call('HSTRLEN', keys.payloads, member) or 0)
      if total > room.total and at > 2 * room.least then
        if popped then put_back(popped, rows, at) end
        break
      end
    end
    local packed, expires_at, expires_text = nil, end_at, end_text
    local id, ready_at = id_of(member), tonumber(rows[at + 1])
    local number, leased_at = 1, now
    if held then
      held = parse_held(held)
      number, leased_at = held.leases + 1, max(now, held.leased_at + 1)
      if held.spent then
        held.spent = ahead_of(held.spent, now)
        expires_at = unspent_end(end_at, held.spent)
        if expires_at ~= end_at then expires_text = text_of(expires_at) end
      end
      held.leases, held.leased_at, held.ready_at, held.worker = number, leased_at, ready_at, worker
      held.added = sub(body, 2, 9)
      packed = pack_held(held)
    else
      local flags = is_long and HAS_ADDED + IS_LONG or HAS_ADDED
      if priority > 0 then flags = flags + HAS_PRIORITY end
      if celery.id_of(body) ~= '' then flags = flags + celery.HELD end
      packed = pack(HELD, 1, now, ready_at, flags, 0, #tag, #name, #worker, 0)
        .. sub(body, 2, 9) .. tag .. name .. worker
      if priority > 0 then packed = packed .. char(priority) end
    end
    leased[at], leased[at + 1] = expires_text, member
    set(queue, fields[at + 1], packed)
    if priority > 0 then
      ranked = ranked or {}
      collect(ranked, priority, tag, member)
    elseif tag == '' then
      untagged[#untagged + 1] = member
    else
      if not tagged then tagged, of_tag = {}, {} end
      tagged[#tagged + 1] = member
      local members = of_tag[tag]
      if not members then
        members = {}
        of_tag[tag] = members
      end
      members[#members + 1] = member
    end
    if taken then taken[#taken + 1] = tag end
    if is_long then payload = call('HGET', keys.payloads, member) end
    if held and held.flags >= HAS_CHECKPOINT and is_set(held.flags, HAS_CHECKPOINT) then body, payload = with_checkpoint(queue.key, member, body, payload) end
    local lease = pack(LEASE, id, leased_at, expires_at, ready_at, number, #body + #payload)
    leases[#leases + 1] = lease .. body .. payload
    kept[#kept + 1] = sub(lease, 1, 16)
  end
  leave_ready(queue, keys, untagged, tagged, of_tag, popped)
  if ranked then
    for priority, own in pairs(ranked) do
      leave_ready(queue, at_priority(keys, priority), own.untagged, own.tagged, own.of_tag)
    end
  end
  if #leased > 0 then call_many('ZADD', keys.leased, leased) end
  if taken then
    lanes.take_tokens(queue, taken)
    if queue.spec.is_fair then rotation.put_last(queue, taken) end
  end
  return concat(leases), concat(kept)
end

-- Parse the request of a lease from the arguments `at` to `last`: now, length (-1: the queue's own), count and kind of
-- filter, room in bytes for all tasks (0: no bound) and the overhead of each, how many are leased whatever their size;
-- the worker; tags.
function leasing.parse_request(args, at, last)
  local _, lease_us, seconds, count, kind, total, each, least = parse(LEASE_REQUEST, args[at])
  return { lease_us = lease_us, seconds = seconds, count = count, kind = kind, worker = args[at + 1],
    tags = { unpack(args, at + 2, last) },
    room = total > 0 and count > least and { total = total, each = each, least = least } or nil }
end

-- Return the refusal of a lease that is too long, before anything is written; nil: none.
function leasing.lease_refusal(queue, request)
  local spec = queue.spec
  if request.lease_us < 0 then request.lease_us, request.seconds = spec.lease_us, spec.lease_seconds end
  if request.seconds > spec.most_seconds then return TOO_LONG .. pack('>d', request.seconds) .. queue.settings end
  return nil
end

-- Grant leases to a worker that was not retired. Returns flags, expired leases, leases, and these as they are kept.
function leasing.grant(queue, request, seen_at)
  if request.worker ~= '' and not seen_at then
    leasing.keep_worker(queue, request.worker, queue.now)
    forget_workers(queue, request.worker)
  end
  local expired, horizon, more = settle(queue, SETTLED_PER_CALL)
  local flags = (horizon or more) and UNSETTLED or 0
  if #expired > 0 then flags = flags + waiters_flag(queue) end
  if queue.spec.is_paused then return flags % UNSETTLED, expired, '', '' end
  if queue.spec.room then request.count = min(request.count, lanes.room(queue)) end
  if request.count < 1 then return flags, expired, '', '' end
  local rows, popped = candidates(queue, request, horizon)
  if #rows == 0 then return flags, expired, '', '' end
  return flags, expired, take(queue, rows, popped, request.worker, request.lease_us, request.room)
end

-- Arguments: the request.
local function lease(keys, args)
  local queue, refusal = open(keys[1], (parse('>I8', args[3])), args, args[4])
  if not queue then return refusal end
  local request = leasing.parse_request(args, 3, #args)
  local seen_at, retired_at = leasing.known_worker(queue)
  if retired_at then return RETIRED end
  local too_long = leasing.lease_refusal(queue, request)
  if too_long then return too_long end
  local flags, expired, leases, kept = leasing.grant(queue, request, seen_at)
  local before = 'o' .. char(flags) .. pack('>I2I2', 0, #expired) .. concat(expired)
  -- A waiting client repeats a call that got nothing under the same number.
  if leases == '' and sub(queue.session, 1, 3) == AS_SESSION .. 'c.' then queue.session = false end
  return finish(queue, before .. leases, before, kept)
end

-- Arguments: now, a task's id, the eta that is expected, the lease's length (-1: the queue's own) and the same in
-- seconds; the worker. Answers as `lease` does, with one lease or none.
local function lease_delayed(keys, args)
  local now, id, expected, lease_us, seconds = parse('>I8I8I8i8d', args[3])
  local worker = args[4]
  local queue, refusal = open(keys[1], now, args, worker)
  if not queue then return refusal end
  local seen_at, retired_at = leasing.known_worker(queue)
  if retired_at then return RETIRED end
  local request = { lease_us = lease_us, seconds = seconds }
  local too_long = leasing.lease_refusal(queue, request)
  if too_long then return too_long end
  if worker ~= '' and not seen_at then
    leasing.keep_worker(queue, worker, now)
    forget_workers(queue, worker)
  end
  local before = 'o\0' .. pack('>I2I2', 0, 0)
  local member = member_of(id)
  local body = call('HGET', queue.key, member)
  if not body or expected <= now then return finish(queue, before) end
  local tag, given, is_long, priority = heads_of(body)
  local state, eta = place_of(queue, tag, member, priority)
  if state ~= DELAYED or eta ~= expected then return finish(queue, before) end
  if queue.touched and not lanes.has_room_for(queue, tag) then return finish(queue, before) end
  local held = call('HGET', queue.key, AS_HELD .. member)
  held = held and parse_held(held) or never_held(tag, given, is_long, body, priority)
  held.spent = ahead_of(held.spent, now, expected)
  set(queue, AS_HELD .. member, pack_held(held))
  take_delayed(queue, tag, member)
  flush(queue)
  PLACE[READY](queue, tag, member, text_of(now), priority)  -- whatever its lane says
  change(queue, tag, READY, 1)
  flush(queue)
  local leases, kept = take(queue, { member, text_of(now) }, nil, worker, request.lease_us)
  return finish(queue, before .. leases, before, kept)
end

changes('lease', lease)
changes('lease_delayed', lease_delayed)
