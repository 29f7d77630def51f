-- The records of workers in each queue: first seen, retired. A worker is fenced in every queue before it counts as
-- retired.

-- Return the ids of a worker's leased tasks, in order, expired ones too.
local function members_of_worker(queue, worker)
  local found = {}
  local rows = call('ZRANGE', queue.keys.leased, 0, -1, 'WITHSCORES')
  local members, etas = {}, {}
  for index = 1, #rows, 2 do
    members[#members + 1] = rows[index]
    etas[rows[index]] = tonumber(rows[index + 1])
  end
  for index, packed in ipairs(read_many('HMGET', queue.key, held_fields(members))) do
    local held = parse_held(packed)
    if held.worker == worker then
      found[#found + 1] = { member = members[index], eta = etas[members[index]], held = held }
    end
  end
  table.sort(found, function(one, other) return id_of(one.member) < id_of(other.member) end)
  return found
end

local function fence(queue, worker)
  local seen_at, retired_at = leasing.worker_of(queue, worker)
  leasing.keep_worker(queue, worker, seen_at, retired_at or queue.now)
end

local function look_at_all(keys, now)
  local queues = {}
  for _, key in ipairs(keys) do
    local queue = read_queue(key, now)  -- a queue that was deleted meanwhile has no leases
    if queue then queues[#queues + 1] = queue end
  end
  return queues
end

-- Arguments: workers. Answers, for each, the instant at which the first of these queues saw it (8 bytes; 0: none did).
local function workers_seen(keys, args)
  local parts = {}
  for index, worker in ipairs(args) do
    local first
    for _, key in ipairs(keys) do
      local seen_at = leasing.worker_of({ key = key }, worker)
      if seen_at then first = first and min(first, seen_at) or seen_at end
    end
    parts[index] = pack('>I8', first or 0)
  end
  return 'o\0' .. concat(parts)
end

-- Arguments: now; a worker. Fences it in these queues unless it holds a live lease in one. Answers 1 if it did, else 0.
local function retire_worker(keys, args)
  local queues = look_at_all(keys, (parse('>I8', args[3])))
  local worker = args[4]
  for _, queue in ipairs(queues) do
    for _, lease in ipairs(members_of_worker(queue, worker)) do
      if lease.eta > queue.now then return 'o\0' .. '0' end
    end
  end
  for _, queue in ipairs(queues) do fence(queue, worker) end
  return 'o\0' .. '1'
end

-- Undo the fence of a retirement that was given up. Arguments: now; a worker.
local function readmit_worker(keys, args)
  for _, queue in ipairs(look_at_all(keys, (parse('>I8', args[3])))) do
    local seen_at = leasing.worker_of(queue, args[4])
    if seen_at then
      leasing.keep_worker(queue, args[4], seen_at)
    else
      call('HDEL', queue.key, AS_WORKER .. args[4])
      call('ZREM', queue.keys.workers, args[4])
    end
  end
  return 'o\0'
end

-- Arguments: now; workers. Fences them.
local function fence_workers(keys, args)
  for _, queue in ipairs(look_at_all(keys, (parse('>I8', args[3])))) do
    for index = 4, #args do fence(queue, args[index]) end
  end
  return 'o\0'
end

-- Arguments: now; a worker; the end of the lines of the attempts; a reason, and whether it is told of a lease whose
-- task lives on. Fences it, and releases its leases: counted, to the old places. Answers, for each queue, how many leases
-- ended, and these. A queue that was moved away is skipped.
local function release_worker(keys, args)
  local now, worker = parse('>I8', args[3]), args[4]
  local parts, waiters, queues = {}, 0, {}
  local options = {
    counts = true, takes_old_place = true, failure = args[5], reason = args[6], is_told = args[7] == '1'
  }
  for index, key in ipairs(keys) do
    local queue = read_queue(key, now)
    local finished = {}
    queues[index] = queue or false
    if queue then fence(queue, worker) end
    if queue and queue.spec.moved_to == '' then
      settle(queue, SETTLED_PER_CALL)
      for _, lease in ipairs(members_of_worker(queue, worker)) do
        if lease.eta > now then finished[#finished + 1] = release_one(queue, lease, options) end
      end
      finish(queue)
      if #finished > 0 then waiters = max(waiters, waiters_flag(queue)) end
    end
    parts[index] = pack('>I4', #finished) .. concat(finished)
  end
  return (lanes.tell(queues, 'o' .. char(waiters) .. concat(parts)))
end

-- Keep a retired worker for queues that are created later, and forget a few of a month ago. Arguments: now; a worker.
local function keep_retired(keys, args)
  local now = parse('>I8', args[3])
  call('HSETNX', keys[1], args[4], text_of(now))
  local some = call('HRANDFIELD', keys[1], WORKERS_EXAMINED, 'WITHVALUES')
  for index = 1, #some, 2 do
    if tonumber(some[index + 1]) < now - FORGOTTEN_AFTER then call('HDEL', keys[1], some[index]) end
  end
  return 'o\0'
end

-- Arguments: now, until when; the holder. Answers 1 when it leads.
local function lead(keys, args)
  local now, until_at = parse('>I8I8', args[3])
  local known = call('GET', keys[1])
  if known and parse('>I8', known) > now and sub(known, 9) ~= args[4] then return 'o\0' .. '0' end
  call('SET', keys[1], pack('>I8', until_at) .. args[4])
  return 'o\0' .. '1'
end

reads('workers_seen', workers_seen)
changes_beside('retire_worker', retire_worker)
changes_beside('readmit_worker', readmit_worker)
changes_beside('fence_workers', fence_workers)
changes_beside('release_worker', release_worker)
changes_beside('keep_retired', keep_retired)
changes_beside('lead', lead)
