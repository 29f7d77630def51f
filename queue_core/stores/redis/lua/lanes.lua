-- Lanes: which tasks of a tag its limits admit, so that they are READY, and which they hold back (ADR 37). And the room
-- that limits of the whole queue leave. The arithmetic is that of admission.py.

local MOST_IN_FLIGHT = 1000000    -- where there is no limit
local MOST_TOLD = 100             -- tasks that one call tells of when room returned

local function tokens_of(limits, full_at, now)
  return max(0, limits.burst + floor(-max(0, full_at - now) / limits.interval))
end

local function room_of(limits, leased, full_at, now)
  local room = limits.most and limits.most - leased or MOST_IN_FLIGHT
  if limits.interval then room = min(room, tokens_of(limits, full_at, now)) end
  return max(0, room)
end

-- Return how many leases the limits of the whole queue let it grant; `over` of them have expired meanwhile.
function lanes.room(queue, over)
  local untagged, tagged = counts_for(queue, UNTAGGED), counts_for(queue, TAGGED)
  local leased = untagged[LEASED] + tagged[LEASED] - (over or 0)
  return room_of(queue.spec.room, leased, tagged[FULL_AT], queue.now)
end

-- Return when the bucket of the whole queue has a token again; nil: it has one, or there is no bucket.
function lanes.next_token(queue)
  local room, full_at = queue.spec.room, counts_for(queue, TAGGED)[FULL_AT]
  if not room.interval or tokens_of(room, full_at, queue.now) > 0 then return nil end
  return full_at - (room.burst - 1) * room.interval
end

-- Return whether limits let one task of a tag be leased that was not admitted: a quarantined one.
function lanes.has_room_for(queue, tag)
  local lane = queue.spec.lane
  if queue.spec.room and lanes.room(queue) < 1 then return false end
  if tag == '' or not lane then return true end
  local counts = counts_for(queue, TAGGED .. tag)
  if lane.interval and tokens_of(lane, counts[FULL_AT], queue.now) <= counts[READY] then return false end
  return not lane.most or counts[LEASED] < lane.most
end

local function take_from(counts, limits, now, number)
  counts[FULL_AT] = max(counts[FULL_AT], now) + number * limits.interval
  counts[IS_CHANGED] = true
end

-- Take the tokens of leased tasks from the buckets of the queue and of their tags.
function lanes.take_tokens(queue, tags)
  local lane, room = queue.spec.lane, queue.spec.room
  if room and room.interval then take_from(counts_for(queue, TAGGED), room, queue.now, #tags) end
  if not lane or not lane.interval then return end
  for _, tag in ipairs(tags) do
    if tag ~= '' then take_from(counts_for(queue, TAGGED .. tag), lane, queue.now, 1) end
  end
end

local function members_and_rows(found)
  local members, rows = {}, {}
  for index = 1, #found, 2 do
    members[#members + 1] = found[index]
    rows[index], rows[index + 1] = text_of(tonumber(found[index + 1])), found[index]
  end
  return members, rows
end

-- Hold the last READY tasks of a tag and priority again.
local function hold(queue, tag, priority, number)
  local keys = at_priority(queue.keys, priority)
  local members, rows = members_and_rows(call('ZRANGE', keys.ready_of .. tag, text_of(-number), '-1', 'WITHSCORES'))
  call_many('ZREM', keys.ready_of .. tag, members)
  call_many('ZREM', keys.ready_tagged, members)
  call_many('ZADD', keys.held_of .. tag, rows)
  call_many('ZADD', queue.keys.held_all, rows)
end

-- Admit the first held tasks of a tag and priority: they wait for a lease from now on.
local function admit(queue, tag, priority, number)
  local keys = at_priority(queue.keys, priority)
  local members, rows = call('ZRANGE', keys.held_of .. tag, '0', text_of(number - 1)), {}
  for index, member in ipairs(members) do rows[2 * index - 1], rows[2 * index] = queue.at, member end
  call_many('ZREM', keys.held_of .. tag, members)
  call_many('ZREM', queue.keys.held_all, members)
  call_many('ZADD', keys.ready_of .. tag, rows)
  call_many('ZADD', keys.ready_tagged, rows)
end

local function take_some(from, to, priority, number)
  local some = min(number, from[priority])
  from[priority] = from[priority] - some
  to[priority] = (to[priority] or 0) + some
  return number - some
end

-- Return how many tasks of each priority are held again, and admitted: `holds` READY ones, the last; or `admits` held
-- ones, the first; and where a held one has a higher priority than a READY one, the two change places.
local function moves_of(queue, tag, ready, held, holds, admits)
  local ranks = queue.spec.ranks
  local ready_at, held_at, down, up = { [0] = ready }, { [0] = held }, {}, {}
  if #ranks > 1 then
    for _, priority in ipairs(ranks) do
      local keys = at_priority(queue.keys, priority)
      ready_at[priority], held_at[priority] = call('ZCARD', keys.ready_of .. tag), call('ZCARD', keys.held_of .. tag)
    end
  end
  for rank = #ranks, 1, -1 do holds = take_some(ready_at, down, ranks[rank], holds) end
  for _, priority in ipairs(ranks) do admits = take_some(held_at, up, priority, admits) end
  local first, last = 1, #ranks
  while first < last do
    local higher, lower = ranks[first], ranks[last]
    local number = min(held_at[higher], ready_at[lower])
    take_some(held_at, up, higher, number)
    take_some(ready_at, down, lower, number)
    if held_at[higher] == 0 then first = first + 1 else last = last - 1 end
  end
  return down, up
end

local function add_admitted(queue, field, number)
  queue.admitted = queue.admitted or {}
  queue.admitted[field] = (queue.admitted[field] or 0) + number
end

-- Return whether the lanes of these tags, which hold nothing, admit so many new tasks each; then they count as admitted.
function lanes.admit_new(queue, numbers)
  for tag, number in pairs(numbers) do
    local counts = counts_for(queue, TAGGED .. tag)
    local room = room_of(queue.spec.lane, counts[LEASED], counts[FULL_AT], queue.now) - counts[READY]
    if counts[IN_LANE] > 0 or number > room then return false end
  end
  for tag, number in pairs(numbers) do add_admitted(queue, TAGGED .. tag, number) end
  return true
end

-- Move tasks between READY and held. Returns how many more are READY.
local function rearrange(queue, tag, counts, holds, admits)
  flush(queue)
  local down, up = moves_of(queue, tag, counts[READY], counts[IN_LANE], holds, admits)
  local left, came = 0, 0
  for priority, number in pairs(down) do
    if number > 0 then hold(queue, tag, priority, number) end
    left = left + number
  end
  for priority, number in pairs(up) do
    if number > 0 then admit(queue, tag, priority, number) end
    came = came + number
  end
  if came > 0 then add_admitted(queue, TAGGED .. tag, came) end
  return came - left
end

local function note_opening(queue, tag, lane, counts)
  local ready, opens_at = counts[READY], nil
  if counts[IN_LANE] > 0 and ready < lane.burst and not (lane.most and ready + counts[LEASED] >= lane.most) then
    opens_at = counts[FULL_AT] - (lane.burst - ready - 1) * lane.interval
  end
  if opens_at then
    later(queue, 'ZADD', queue.keys.opens, text_of(opens_at), tag)
  else
    later(queue, 'ZREM', queue.keys.opens, tag)
  end
end

local NO_LIMITS = {}

local function update_lane(queue, tag)
  local lane, counts = queue.spec.lane or NO_LIMITS, counts_for(queue, TAGGED .. tag)
  local ready, leased, held = counts[READY], counts[LEASED], counts[IN_LANE]
  local places = lane.most and max(0, lane.most - leased) or MOST_IN_FLIGHT
  local most = room_of(lane, leased, counts[FULL_AT], queue.now)
  local holds = max(0, ready - (queue.limits_changed and most or places))
  local admits = min(held + holds, max(0, most - (ready - holds)))
  if holds > 0 or admits > 0 or (held > 0 and ready > 0 and queue.spec.has_priorities) then
    local more, all = rearrange(queue, tag, counts, holds, admits), counts_for(queue, TAGGED)
    for _, row in ipairs({ counts, all }) do
      row[READY], row[IN_LANE], row[IS_CHANGED] = row[READY] + more, row[IN_LANE] - more, true
    end
  end
  if lane.interval then note_opening(queue, tag, lane, counts) end
end

-- Update the lanes of the tags that were touched since the last time, and the rotation.
function lanes.update(queue)
  local touched = queue.touched
  if not next(touched) then return end
  queue.touched = {}
  for tag in pairs(touched) do
    if tag ~= '' then update_lane(queue, tag) end
  end
  if queue.spec.is_fair then rotation.update(queue, touched) end
end

-- Update these lanes and up to `limit` of those that time has opened; later reads of the same call find them updated.
-- Returns whether more of them are left.
function lanes.update_due(queue, limit)
  local more, lane = false, queue.spec.lane
  if lane and lane.interval then
    local due = call('ZRANGEBYSCORE', queue.keys.opens, '-inf', queue.at, 'LIMIT', '0', text_of(limit + 1))
    more = #due > limit
    for index = 1, min(limit, #due) do queue.touched[due[index]] = true end
  end
  lanes.update(queue)
  if queue.writes then flush(queue) end  -- a lease that follows reads the rotation, also where an exchange changed it
  return more
end

-- Update every lane at the end of the call: the queue has other limits now. `before` is its spec until now.
function lanes.touch_all(queue, before)
  queue.touched, queue.ended, queue.limits_changed = { [''] = true }, MOST_TOLD, true
  local tags = call('ZRANGE', queue.keys.tags, '0', '-1')
  for _, tag in ipairs(tags) do
    queue.touched[tag] = true
    counts_for(queue, TAGGED .. tag)  -- with what belongs to lanes, as `touched` is set
  end
  if before.lane and before.lane.interval then call('UNLINK', queue.keys.opens) end
  if before.is_fair and not queue.spec.is_fair then rotation.clear(queue, tags) end
end

-- Note of which tasks room in the whole queue returned, after leases ended.
function lanes.note_room(queue)
  if not queue.spec.room or queue.ended == 0 then return end
  local number = min(queue.ended, lanes.room(queue), MOST_TOLD)
  if number < 1 then return end
  flush(queue)
  local members = {}
  local rows = leasing.first_in_order(queue, ANY_TAG, NOTHING, number)
  for index = 1, #rows, 2 do members[#members + 1] = rows[index] end
  for _, body in ipairs(read_many('HMGET', queue.key, members)) do
    local tag = heads_of(body)
    add_admitted(queue, tag == '' and UNTAGGED or TAGGED .. tag, 1)
  end
end

-- Return an answer, and the part of it that is kept apart, with what limits admitted in these queues of a call: behind
-- the flags the number of entries, then of each: the index of the queue, a length, the field of a tag's counters, and
-- the number of tasks.
function lanes.tell(queues, answer, before)
  local entries, waiters = {}, 0
  for index = 1, #queues do
    local queue = queues[index]
    if queue and queue.admitted then
      for field, number in pairs(queue.admitted) do
        entries[#entries + 1] = pack('>I2I2', index - 1, #field) .. field .. pack('>I4', number)
      end
      waiters = max(waiters, waiters_flag(queue))
    end
  end
  if #entries == 0 then return answer, before end
  local flags = byte(answer, 2)
  if waiters > 0 and not is_set(flags, HAS_WAITERS) then flags = flags + HAS_WAITERS end
  local head = 'o' .. char(flags + ADMITTED) .. pack('>I2', #entries) .. concat(entries)
  return head .. sub(answer, 3), before and head .. sub(before, 3)
end
