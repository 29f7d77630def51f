-- One queue during one call: its settings, its counters, and its pending writes.

local LANE, COUNTS_BYTES = '>I6I8I8B', 67  -- what follows the counters in the row of a limited queue; their size
local TAG_IDLE = 86400e6
local TAGS_EXAMINED = 8                   -- per new tag
local KEPT_SAMPLES = 10000                -- at least; more where the history is longer
local TRIMMED_SAMPLES = 512               -- at a time

local function new_queue(key, now, cells)
  local settings = cells[1]
  if not settings then return nil, UNKNOWN .. key end
  local spec = spec_of(settings)
  return {
    key = key, keys = keys_of(key), now = now, at = text_of(now), settings = settings, spec = spec,
    touched = spec.is_limited and {}, ended = 0,  -- `admitted` and `beside` are set where they are needed
    stored = 0, packed_untagged = cells[2], packed_tagged = cells[3], counts = {}, cells = {}, cell_count = 0,
    session = false, number = false, meaning = false, kept_bytes = 0, noted_at = false, cells_read = false, samples = false, writes = false
  }
end

-- Return the queue of a key, or nil and the refusal when there is none. `at` is `now` as text.
function read_queue(key, now)
  return new_queue(key, now, call('HMGET', key, OWN, UNTAGGED, TAGGED))
end

function refusal_of_moved(queue)
  if queue.spec.moved_to ~= '' then return MOVED .. queue.key .. '\n' .. queue.spec.moved_to end
  return nil
end

-- Return the queue of a call that changes it, or nil and the answer: if there is no such queue, or the call was
-- answered before. More cells of its hash can be read with it: that of `worker` is `cells_read[READ]`, and `fields`
-- follow.
function open_fenced(key, now, args, worker, fields)
  local session = AS_SESSION .. args[1]
  local cells
  if fields then
    cells = call('HMGET', key, OWN, UNTAGGED, TAGGED, session, AS_WORKER .. (worker or ''), unpack(fields))
  else
    cells = call('HMGET', key, OWN, UNTAGGED, TAGGED, session, AS_WORKER .. (worker or ''))
  end
  local queue, refusal = new_queue(key, now, cells)
  if not queue then return nil, refusal end
  queue.session, queue.cells_read = session, cells
  local age
  queue.number, queue.meaning, age = sessions.numbered(args[2])
  local kept = cells[4]
  if kept then
    local answer = sessions.repeated_answer(key, kept, queue.number, now, queue.meaning)
    if answer then return nil, answer end
    queue.noted_at, queue.kept_bytes = parse('>I8', kept, 9), #kept
  elseif age then
    refusal = sessions.refusal_of_forgotten(key, now, age)
    if refusal then return nil, refusal end
  end
  return queue
end

-- Return the same for a call that changes tasks, which is refused for a queue that was moved away.
function open(key, now, args, worker, fields)
  local queue, refusal = open_fenced(key, now, args, worker, fields)
  if not queue then return nil, refusal end
  refusal = refusal_of_moved(queue)
  if refusal then return nil, refusal end
  return queue
end

function waiters_flag(queue)
  return has_waiters(queue.key) and HAS_WAITERS or 0
end

local function parse_counts(packed)
  if not packed then return { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 } end
  local counts = { parse(COUNTS, packed) }
  if #packed > COUNTS_BYTES then
    counts[IN_LANE], counts[FULL_AT], counts[AT_PLACE], counts[AT_RANK] = parse(LANE, packed, COUNTS_BYTES + 1)
  end
  return counts
end

-- Return the counters of a field, with the changes of this call.
function counts_for(queue, field)
  local counts = queue.counts[field]
  if counts then return counts end
  if field == UNTAGGED then
    counts = parse_counts(queue.packed_untagged)
  elseif field == TAGGED then
    counts = parse_counts(queue.packed_tagged)
  else
    counts = parse_counts(call('HGET', queue.key, field))
  end
  counts[IS_CHANGED] = false
  if queue.touched and not counts[IN_LANE] then
    counts[IN_LANE], counts[FULL_AT], counts[AT_PLACE], counts[AT_RANK] = 0, 0, 0, 0
  end
  queue.counts[field] = counts
  return counts
end

-- Return the counters of the tasks of a tag, to change them: one table for the untagged (tag ""), else one of all
-- tagged and one of the tag. In a limited queue the tag's lane and place are updated at the end of the verb.
function counters_of(queue, tag)
  if queue.touched then queue.touched[tag] = true end
  if tag == '' then
    local counts = counts_for(queue, UNTAGGED)
    counts[IS_CHANGED] = true
    return counts
  end
  local all, counts = counts_for(queue, TAGGED), counts_for(queue, TAGGED .. tag)
  all[IS_CHANGED], counts[IS_CHANGED] = true, true
  return all, counts
end

function change(queue, tag, counter, number)
  local all, counts = counters_of(queue, tag)
  all[counter] = all[counter] + number
  if counts then counts[counter] = counts[counter] + number end
end

local function forget_idle_tags(queue)
  for _, tag in ipairs(call('ZRANDMEMBER', queue.keys.tags, TAGS_EXAMINED)) do
    local counts = parse_counts(call('HGET', queue.key, TAGGED .. tag))
    if counts[READY] + counts[DELAYED] + counts[LEASED] + counts[DEAD] + (counts[IN_LANE] or 0) == 0
      and counts[LAST] < queue.now - TAG_IDLE and (counts[FULL_AT] or 0) < queue.now then
      call('HDEL', queue.key, TAGGED .. tag)
      call('ZREM', queue.keys.tags, tag)
    end
  end
end

-- Keep finished leases for the samples.
function note(queue, finished)
  local samples = queue.samples
  if not samples then
    samples = {}
    queue.samples = samples
  end
  samples[#samples + 1] = finished
end

-- Write the collected changes, without counters and samples. Later reads of the same call find them.
function flush(queue)
  local writes = queue.writes
  if writes then
    queue.writes = false
    for command, keys in pairs(writes) do
      for key, cells in pairs(keys) do call_many(command, key, cells) end
    end
  end
  if queue.cell_count > 0 then
    call_many('HSET', queue.key, queue.cells)
    queue.cells, queue.cell_count = {}, 0
  end
end

-- Collect the counters that were changed. Returns the new tags, if any, as ZADD takes them.
local function set_counts(queue)
  local new_tags
  for field, counts in pairs(queue.counts) do
    if counts[IS_CHANGED] then
      counts[IS_CHANGED] = false
      if #field > 1 then
        if counts[LAST] == 0 then
          new_tags = new_tags or {}
          new_tags[#new_tags + 1] = '0'
          new_tags[#new_tags + 1] = sub(field, 2)
        end
        counts[LAST] = queue.now
      end
      local row = pack(COUNTS, unpack(counts, 1, LAST))
      if counts[IN_LANE] then
        row = row .. pack(LANE, counts[IN_LANE], counts[FULL_AT], counts[AT_PLACE], counts[AT_RANK])
      end
      set(queue, field, row)
    end
  end
  return new_tags
end

-- Return how many finished leases are kept. The length of the history is one of the settings that are kept as JSON.
local function most_samples(queue)
  local kept = call('HGET', queue.key, ONLY_KEPT)
  return max(KEPT_SAMPLES, kept and cjson.decode(kept).history_keep or 0)
end

-- Write the finished leases that were noted; now and then forget those beyond the number kept.
local function write_samples(queue)
  local samples = queue.samples
  queue.samples = false
  call_many('RPUSH', queue.keys.samples, samples)
  local untagged, tagged = counts_for(queue, UNTAGGED), counts_for(queue, TAGGED)
  local before = untagged[LAST] + tagged[LAST]
  if floor((before + #samples) / TRIMMED_SAMPLES) ~= floor(before / TRIMMED_SAMPLES) then
    call('LTRIM', queue.keys.samples, text_of(-most_samples(queue)), '-1')
  end
  local counts = untagged[IS_CHANGED] and untagged or tagged  -- one of them was changed too
  counts[LAST] = counts[LAST] + #samples
end

-- Write all collected changes, at the end of every call that changes something. Returns the answer, which is kept for a
-- repeated call; if it ends with leases, only the part `before` them is kept, and where to find them.
function finish(queue, answer, before, leases)
  if queue.touched then
    lanes.update(queue)
    lanes.note_room(queue)
  end
  if answer and (queue.admitted or queue.beside) then
    answer, before = lanes.tell(queue.beside or { queue }, answer, before)
  end
  if queue.samples then write_samples(queue) end
  if queue.stored ~= 0 then
    call('INCRBY', queue.keys.stored, text_of(queue.stored))
    queue.stored = 0
  end
  local new_tags = set_counts(queue)
  if queue.session then sessions.keep(queue, answer, before, leases) end
  flush(queue)
  if new_tags then
    call_many('ZADD', queue.keys.tags, new_tags)
    forget_idle_tags(queue)
  end
  return answer
end
