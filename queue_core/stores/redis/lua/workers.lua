-- The records of workers in each queue: first seen, retired. A worker is fenced in every queue before it counts as
-- retired.

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
    if holding.has_lease(queue, worker) then return 'o\0' .. '0' end
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

-- Arguments: now; a worker. Fences it in these queues. Answers for each 1 if it may hold a live lease there and the queue
-- was not moved away, else 0.
local function fence_holder(keys, args)
  local letters = {}
  for index, key in ipairs(keys) do
    local queue = read_queue(key, (parse('>I8', args[3])))
    letters[index] = '0'
    if queue then
      fence(queue, args[4])
      if queue.spec.moved_to == '' and holding.has_lease(queue, args[4], holding.EXAMINED_PER_CALL) then letters[index] = '1' end
    end
  end
  return 'o\0' .. concat(letters)
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
changes_beside('fence_holder', fence_holder)
changes_beside('keep_retired', keep_retired)
changes_beside('lead', lead)
