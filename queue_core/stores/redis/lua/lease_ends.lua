-- The verbs of a lease's holder: renew, release, delete; each fenced by the token. And exchange: delete, then lease.

-- Open the queue of a call whose fences are packed in an argument. Returns it and for each fence: the member, the field
-- of the lease record, the record, and the eta if the fence is the current lease of its task, else false.
local function open_for(key, now, args, worker, packed_fences, number)
  local fences = { parse('>' .. rep('I8', 2 * number), packed_fences) }
  local members = {}
  for index = 1, number do members[index] = member_of(fences[2 * index - 1]) end
  local fields = held_fields(members)
  local queue, refusal = open(key, now, args, worker, fields)
  if not queue then return nil, refusal end
  local etas, packed = read_many('ZMSCORE', queue.keys.leased, members), {}
  for index = 1, number do
    local eta = etas[index] and tonumber(etas[index])
    packed[index] = queue.cells_read[READ + index]
    local _, leased_at
    if eta and eta > now then _, leased_at = parse('>I4I8', packed[index]) end
    etas[index] = leased_at == fences[2 * index] and eta or false
  end
  return queue, { members = members, fields = fields, packed = packed, etas = etas }
end

-- Return the leases of the fences: false where one is not current. The same fence twice is the same lease.
local function leases_of(found)
  local leases, by_member = {}, {}
  for index, member in ipairs(found.members) do
    local lease = found.etas[index] and (by_member[member]
      or { member = member, eta = found.etas[index], held = parse_held(found.packed[index]) })
    leases[index] = lease
    if lease then by_member[member] = lease end
  end
  return leases
end

-- Keep what a handler reported with the renewal of its lease, the next of the arguments from `at` on: progress (1),
-- a checkpoint (2), or both. Returns the index of the next.
local function keep_report(queue, lease, reported, args, at)
  for _, part in ipairs({ { 1, HAS_PROGRESS, PROGRESS }, { 2, HAS_CHECKPOINT, CHECKPOINT } }) do
    if is_set(reported, part[1]) then
      if lease then
        if not is_set(lease.held.flags, part[2]) then lease.held.flags = lease.held.flags + part[2] end
        set(queue, part[3] .. lease.member, args[at])
      end
      at = at + 1
    end
  end
  return at
end

-- Arguments: now and the number of tokens; the tokens; for each its new length (-1: the queue's own); and, if one of
-- them comes with news of its task, for each a byte that tells what, then these. Answers a 1 or 0 for each, then the
-- renewed leases.
local function renew(keys, args)
  local now, number = parse('>I8I2', args[3])
  local queue, found = open_for(keys[1], now, args, nil, args[4], number)
  if not queue then return found end
  local lengths, leases = { parse('>' .. rep('i8', number), args[5]) }, leases_of(found)
  for index = 1, number do
    if lengths[index] < 0 then lengths[index] = queue.spec.lease_us end
  end
  local is_bounded = queue.spec.most_seconds < 604800  -- seven days bound each renewal alone, never the sum
  for index, lease in ipairs(leases) do
    local seconds = is_bounded and lease and (now + lengths[index] - lease.held.leased_at) / 1e6
    if seconds and seconds > queue.spec.most_seconds then return TOO_LONG .. pack('>d', seconds) .. queue.settings end
  end
  local letters, renewed = {}, {}
  for index, lease in ipairs(leases) do
    letters[index] = lease and '1' or '0'
    if lease then
      local held = lease.held
      held.spent = ahead_of(held.spent, now, lease.eta)
      lease.eta = unspent_end(now + lengths[index], held.spent)
      renewed[#renewed + 1] = pack('>I8I4HHH', lease.eta, held.leases, #held.tag, #held.name, #held.worker)
        .. held.tag .. held.name .. held.worker
    end
  end
  local at = 7
  for index, lease in ipairs(leases) do
    if args[6] then at = keep_report(queue, lease, byte(args[6], index), args, at) end
  end
  for _, lease in ipairs(leases) do
    if lease then
      later(queue, 'ZADD', queue.keys.leased, text_of(lease.eta), lease.member)
      set(queue, AS_HELD .. lease.member, pack_held(lease.held))
    end
  end
  return finish(queue, 'o\0' .. concat(letters) .. concat(renewed))
end

-- Return the queue's back-off in microseconds, with exactly the arithmetic of semantics.py.
local function back_off(queue, leases, jitter)
  local doublings = min(max(leases - 1, 0), 60)
  local longest = min(queue.spec.retry_max, queue.spec.retry_min * 2 ^ doublings)
  return round(longest * (1.0 - 0.1 * jitter) * 1e6)
end

-- Release one lease. `options` has the delay (-1: the queue's back-off), jitter, whether the lease counts; or says that
-- the task takes its old place at once. And whether the task dies at once; the reason if it dies, and whether that is
-- told of the lease if not; and the end of the line of the attempt.
local function release_one(queue, lease, options)
  local held, now, member = lease.held, queue.now, lease.member
  queue.ended = queue.ended + 1
  take_leased(queue, held.tag, member)
  change(queue, held.tag, RELEASED_TOTAL, 1)
  held.spent = ahead_of(held.spent, now, lease.eta)
  if options.dies or (options.counts and is_exhausted(queue, held)) then
    return die(queue, member, held, RELEASED, now, options.reason, options.failure)
  end
  local finished = pack_finished(queue.key, member, held, RELEASED, now, options.is_told and options.reason or '')
  keep_attempt(queue, member, held, now, options.failure)
  local eta
  if options.takes_old_place or (options.delay < 0 and not options.counts) then
    eta = min(held.ready_at, now)
  else
    eta = now + (options.delay >= 0 and options.delay or back_off(queue, held.leases, options.jitter))
  end
  if not options.counts then held.leases = held.leases - 1 end
  set(queue, AS_HELD .. member, pack_held(held))
  put_waiting(queue, held.tag, member, eta, held.priority)
  note(queue, finished)
  return finished
end

local COUNTS_LEASE, DIES, IS_TOLD = 1, 2, 4

-- Arguments: now and the number of tokens; the tokens; for each delay, jitter, the flags above, a reason, and the end
-- of the line of the attempt.
local function release(keys, args)
  local now, number = parse('>I8I2', args[3])
  local queue, found = open_for(keys[1], now, args, nil, args[4], number)
  if not queue then return found end
  local letters, finished, at = {}, {}, 1
  for index, lease in ipairs(leases_of(found)) do
    local delay, jitter, flags, reason_bytes, failure_bytes, reason_at = parse('>i8dBHH', args[5], at)
    local failure_at = reason_at + reason_bytes
    at = failure_at + failure_bytes
    local is_current = lease and not lease.is_over
    letters[index] = is_current and '1' or '0'
    if is_current then
      lease.is_over = true
      finished[#finished + 1] = release_one(queue, lease, {
        delay = delay, jitter = jitter, counts = is_set(flags, COUNTS_LEASE), dies = is_set(flags, DIES),
        is_told = is_set(flags, IS_TOLD), reason = sub(args[5], reason_at, failure_at - 1),
        failure = sub(args[5], failure_at, at - 1)
      })
    end
  end
  local waiters = #finished > 0 and waiters_flag(queue) or 0
  return finish(queue, 'o' .. char(waiters) .. concat(letters) .. concat(finished))
end

local function delete_one(queue, lease)
  local held = lease.held
  local finished = pack_finished(queue.key, lease.member, held, DELETED, queue.now, '')
  queue.ended = queue.ended + 1
  take_leased(queue, held.tag, lease.member)
  change(queue, held.tag, DELETED_TOTAL, 1)
  drop(queue, lease.member, held.name, held.flags % 2 == IS_LONG, queue.now, held.flags)
  note(queue, finished)
  return finished
end

local DELETED_KNOWN = DELETED + KNOWS_ADDED

-- Delete the tasks of current leases, in order. Returns a 1 or 0 for each, and the finished leases.
local function delete_all(queue, found)
  local keys, now = queue.keys, queue.now
  local letters, gone, is_gone, gone_fields, finished = {}, {}, {}, {}, {}
  local untagged, of_tag = 0, nil
  for index, member in ipairs(found.members) do
    local is_current = found.etas[index] and not is_gone[member]
    letters[index] = is_current and '1' or '0'
    if is_current then
      local cells, size = found.packed[index], #gone + 1
      local leases, leased_at, ready_at, flags, spents, tag_bytes, name_bytes, worker_bytes, _, at = parse(HELD, cells)
      at = at + 8 * spents
      local texts_at, added = at, nil
      if flags == HAS_ADDED or is_set(flags, HAS_ADDED) then at = at + 8 else added = NEVER_ADDED end
      local tag, texts_bytes = sub(cells, at, at + tag_bytes - 1), tag_bytes + name_bytes + worker_bytes
      gone[size], is_gone[member] = member, true
      gone_fields[2 * size - 1], gone_fields[2 * size] = member, found.fields[index]
      if tag == '' then
        untagged = untagged + 1
      else
        of_tag = of_tag or {}
        of_tag[tag] = (of_tag[tag] or 0) + 1
      end
      local texts = sub(cells, texts_at, at + texts_bytes - 1)
      if added then texts = added .. texts end
      local flag = 0
      if flags >= celery.HELD then
        local last
        flag, last = celery.part(queue.key, member, flags)
        texts = texts .. last
      end
      finished[size] = pack(FINISHED, DELETED_KNOWN + flag, leases, max(0, leased_at - ready_at), max(0, now - leased_at), now,
        id_of(member), tag_bytes, name_bytes, worker_bytes, 0) .. texts
      local is_long = flags ~= HAS_ADDED and flags % 2 == IS_LONG
      discount(queue, member, is_long)
      if is_long then later(queue, 'HDEL', keys.payloads, member) end
      if flags >= HAS_ATTEMPTS then
        for _, part in ipairs(parts_of(flags)) do later(queue, 'HDEL', queue.key, part .. member) end
      end
      if name_bytes > 0 then
        names.bury_name(queue, sub(cells, at + tag_bytes, at + tag_bytes + name_bytes - 1), now + queue.spec.retention)
      end
    end
  end
  if #gone == 0 then return concat(letters), '' end
  queue.samples, queue.ended = finished, #gone
  call_many('ZREM', keys.leased, gone)
  call_many('HDEL', queue.key, gone_fields)
  if untagged > 0 then
    change(queue, '', LEASED, -untagged)
    change(queue, '', DELETED_TOTAL, untagged)
  end
  for tag, tasks in pairs(of_tag or NOTHING) do
    change(queue, tag, LEASED, -tasks)
    change(queue, tag, DELETED_TOTAL, tasks)
  end
  return concat(letters), concat(finished)
end

-- Delete the tasks of current leases, each with the tasks that follow it: their numbers (2 bytes each) are in
-- `follows`. One by one, as a task may need the name of one that a later deletion of the same call removes.
local function hand_over(queue, found, follows, tasks, block)
  local letters, finished, first = {}, {}, 1
  for index, lease in ipairs(leases_of(found)) do
    local is_current = lease and not lease.is_over
    local last = first + parse('>I2', follows, 2 * index - 1) - 1
    letters[index] = is_current and '1' or '0'
    if is_current then
      lease.is_over = true
      finished[#finished + 1] = delete_one(queue, lease)
      flush(queue)
      if last >= first then finished[#finished + 1] = adding.add_tasks(queue, tasks, first, last, block) end
      if tasks.queues then
        for task = first, last do flush(tasks.queues[task]) end
      end
    end
    first = last + 1
  end
  return concat(letters), concat(finished)
end

-- Arguments: now and the number of tokens; the tokens.
local function delete(keys, args)
  local now, number = parse('>I8I2', args[3])
  local queue, found = open_for(keys[1], now, args, nil, args[4], number)
  if not queue then return found end
  local letters, finished = delete_all(queue, found)
  return finish(queue, 'o\0' .. letters .. finished)
end

-- Open all queues of a call that deletes and adds; the first with the leases of its fences.
local function open_all_for(keys, now, args, worker, packed_fences, number)
  local first, found = open_for(keys[1], now, args, worker, packed_fences, number)
  if not first then return nil, found end
  local queues, refusal = adding.open_rest(first, keys, now)
  if not queues then return nil, refusal end
  return queues, found
end

-- Deletions with tasks that follow. Arguments: now and the number of tokens; the tokens; how many tasks follow in all
-- (4 bytes), and each (2 bytes); a block of ids; the tasks.
local function delete_and_add(keys, args)
  local now, number = parse('>I8I2', args[3])
  local queues, found = open_all_for(keys, now, args, nil, args[4], number)
  if not queues then return found end
  local total = parse('>I4', args[5])
  if not adding.has_ids(queues[1], total, args[6]) then return NO_IDS end
  local letters, finished = hand_over(queues[1], found, sub(args[5], 5), adding.parse_tasks(queues, args, 7, total), args[6])
  return adding.finish_all(queues, 'o' .. char(adding.waiters_of_any(queues)) .. letters .. finished)
end

-- Lease after deletions, whose outcomes are `letters` and `finished`, and end the call.
local function lease_after(queue, request, letters, finished, waiters)
  if queue.touched then lanes.update(queue) end
  local seen_at, retired_at = leasing.known_worker(queue)
  if retired_at then
    return finish(queue, 'o' .. char(REFUSED + waiters) .. pack('>I2I2', #letters, 0) .. letters .. finished)
  end
  local flags, expired, leases, kept = leasing.grant(queue, request, seen_at)
  if not is_set(flags, HAS_WAITERS) then flags = flags + waiters end
  local before = 'o' .. char(flags) .. pack('>I2I2', #letters, #expired) .. letters .. finished .. concat(expired)
  return finish(queue, before .. leases, before, kept)
end

-- Arguments: the number of tokens (2 bytes); the tokens; the request of the lease.
local function exchange(keys, args)
  local queue, found = open_for(keys[1], (parse('>I8', args[5])), args, args[6], args[4], (parse('>I2', args[3])))
  if not queue then return found end
  local request = leasing.parse_request(args, 5, #args)
  local too_long = leasing.lease_refusal(queue, request)
  if too_long then return too_long end
  local letters, finished = delete_all(queue, found)
  return lease_after(queue, request, letters, finished, 0)
end

-- The same with tasks that follow. Arguments: the number of tokens; the tokens; how many tasks follow in all, and
-- each; a block of ids; the number of tags (2 bytes); the request; the tasks.
local function exchange_and_add(keys, args)
  local tags = parse('>I2', args[7])
  local queues, found = open_all_for(keys, (parse('>I8', args[8])), args, args[9], args[4], (parse('>I2', args[3])))
  if not queues then return found end
  local queue, request = queues[1], leasing.parse_request(args, 8, 9 + tags)
  local too_long = leasing.lease_refusal(queue, request)
  if too_long then return too_long end
  local total = parse('>I4', args[5])
  if not adding.has_ids(queue, total, args[6]) then return NO_IDS end
  local tasks = adding.parse_tasks(queues, args, 10 + tags, total)
  local letters, finished = hand_over(queue, found, sub(args[5], 5), tasks, args[6])
  flush(queue)
  for index = 2, #queues do finish(queues[index]) end
  return lease_after(queue, request, letters, finished, adding.waiters_of_any(queues))
end

changes('renew', renew)
changes('release', release)
changes('delete', delete)
changes('delete_and_add', delete_and_add, 'grows')
changes('exchange', exchange)
changes('exchange_and_add', exchange_and_add, 'grows')
