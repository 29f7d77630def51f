-- The place of a task: the sorted sets that have it by its state, and its moves between them, which are counted.

local function place_ready(queue, tag, member, eta, priority)
  local keys = at_priority(queue.keys, priority)
  if tag == '' then
    later(queue, 'ZADD', keys.ready, eta, member)
  else
    later(queue, 'ZADD', keys.ready_tagged, eta, member)
    later(queue, 'ZADD', keys.ready_of .. tag, eta, member)
  end
end

local function take_ready(queue, tag, member, priority)
  local keys = at_priority(queue.keys, priority)
  if tag == '' then
    later(queue, 'ZREM', keys.ready, member)
  else
    later(queue, 'ZREM', keys.ready_tagged, member)
    later(queue, 'ZREM', keys.ready_of .. tag, member)
  end
  change(queue, tag, READY, -1)
end

local function place_delayed(queue, tag, member, eta)
  local keys = queue.keys
  later(queue, 'ZADD', keys.delayed_all, eta, member)
  later(queue, 'ZADD', tag == '' and keys.delayed or keys.delayed_of .. tag, eta, member)
end

function take_delayed(queue, tag, member)
  local keys = queue.keys
  later(queue, 'ZREM', keys.delayed_all, member)
  later(queue, 'ZREM', tag == '' and keys.delayed or keys.delayed_of .. tag, member)
  change(queue, tag, DELAYED, -1)
end

local function place_dead(queue, tag, member, at)
  local keys = queue.keys
  later(queue, 'ZADD', keys.dead_all, at, member)
  later(queue, 'ZADD', tag == '' and keys.dead or keys.dead_of .. tag, at, member)
end

function take_dead(queue, tag, member)
  local keys = queue.keys
  later(queue, 'ZREM', keys.dead_all, member)
  later(queue, 'ZREM', tag == '' and keys.dead or keys.dead_of .. tag, member)
  change(queue, tag, DEAD, -1)
end

local function place_leased(queue, _, member, expires_at)
  later(queue, 'ZADD', queue.keys.leased, expires_at, member)
end

function take_leased(queue, tag, member)
  later(queue, 'ZREM', queue.keys.leased, member)
  change(queue, tag, LEASED, -1)
end

local function place_held(queue, tag, member, eta, priority)
  later(queue, 'ZADD', queue.keys.held_all, eta, member)
  later(queue, 'ZADD', at_priority(queue.keys, priority).held_of .. tag, eta, member)
end

local function take_held(queue, tag, member, priority)
  later(queue, 'ZREM', queue.keys.held_all, member)
  later(queue, 'ZREM', at_priority(queue.keys, priority).held_of .. tag, member)
  change(queue, tag, IN_LANE, -1)
end

TAKE = { [READY] = take_ready, [DELAYED] = take_delayed, [LEASED] = take_leased, [DEAD] = take_dead,
  [IN_LANE] = take_held }
-- Put a task into its place, without counting it; the eta is a text.
PLACE = { [READY] = place_ready, [DELAYED] = place_delayed, [LEASED] = place_leased, [DEAD] = place_dead,
  [IN_LANE] = place_held }

-- Return the state in which a task that becomes READY is stored: a tag's lane admits it at the end of the verb.
function entered(queue, state, tag)
  return state == READY and tag ~= '' and queue.spec.lane and IN_LANE or state
end

function put(queue, state, tag, member, eta, priority)
  state = entered(queue, state, tag)
  PLACE[state](queue, tag, member, eta, priority)
  change(queue, tag, state, 1)
end

-- Return READY or DELAYED, by the eta.
function put_waiting(queue, tag, member, eta, priority)
  put(queue, eta <= queue.now and READY or DELAYED, tag, member, text_of(eta), priority)
end

-- Return state and eta of a task of this tag and priority, as they are stored; nil: there is none.
function place_of(queue, tag, member, priority)
  local keys = queue.keys
  local own = at_priority(keys, priority)
  local eta = call('ZSCORE', tag == '' and own.ready or own.ready_tagged, member)
  if eta then return READY, tonumber(eta) end
  eta = call('ZSCORE', keys.leased, member)
  if eta then return LEASED, tonumber(eta) end
  eta = call('ZSCORE', keys.delayed_all, member)
  if eta then return DELAYED, tonumber(eta) end
  eta = call('ZSCORE', keys.dead_all, member)
  if eta then return DEAD, tonumber(eta) end
  eta = (counts_for(queue, TAGGED)[IN_LANE] or 0) > 0 and call('ZSCORE', keys.held_all, member)
  if eta then return IN_LANE, tonumber(eta) end
  return nil
end

-- Count the payload of a deleted task, where payloads are counted.
function discount(queue, member, is_long)
  if not queue.spec.is_counted then return end
  local bytes = is_long and call('HSTRLEN', queue.keys.payloads, member) or payload_bytes(call('HGET', queue.key, member))
  queue.stored = queue.stored - bytes
end

-- Delete a task that was removed from its place; a given name stays taken for its retention. `flags` are those of its
-- lease record; nil: not known.
function drop(queue, member, name, is_long, at, flags)
  local keys = queue.keys
  discount(queue, member, is_long)
  later(queue, 'HDEL', queue.key, member, AS_HELD .. member)
  if not flags or flags >= HAS_ATTEMPTS then
    later(queue, 'HDEL', queue.key, ATTEMPTS .. member, PROGRESS .. member)
    later(queue, 'HDEL', queue.key, CHECKPOINT .. member)
  end
  if is_long then later(queue, 'HDEL', keys.payloads, member) end
  if name ~= '' then names.bury_name(queue, name, at + queue.spec.retention) end
end

-- Return whether a task has no lease left, by its own bound if it has one, else by the queue's.
function is_exhausted(queue, held)
  local bound = held.bound or queue.spec.most_leases
  return bound ~= nil and held.leases >= bound
end

local MOST_ATTEMPTS = 10
local EXPIRED_FAILURE = '"expired","","","",""'                     -- as attempts/attempt.py has it, and its words
local EXPIRED_REASON = 'its lease expired: nobody renewed it'

-- Keep lines of attempts behind those that the task has (nil: none), without the oldest where there are too many. The
-- caller writes its lease record with HAS_ATTEMPTS.
function leasing.keep_lines(queue, member, kept, lines)
  if kept then
    lines = string.match(kept, '^[^\t]*') .. '\n' .. lines  -- a traceback is of the last one only
    local _, more = string.gsub(lines, '\n', '')
    for _ = MOST_ATTEMPTS, more do lines = sub(lines, string.find(lines, '\n', 1, true) + 1) end
  end
  set(queue, ATTEMPTS .. member, lines)
end

-- Keep a lease that ends now among the attempts of its task. `failure` is the end of its line. The caller writes `held`
-- afterwards.
function keep_attempt(queue, member, held, ended_at, failure)
  local kept = is_set(held.flags, HAS_ATTEMPTS) and call('HGET', queue.key, ATTEMPTS .. member) or nil
  leasing.keep_lines(queue, member, kept, '[' .. text_of(held.leases) .. ',' .. json_of(held.worker) .. ','
    .. text_of(held.leased_at) .. ',' .. text_of(ended_at) .. ',' .. failure .. ']')
  if not kept then held.flags = held.flags + HAS_ATTEMPTS end
end

-- End a lease with the task's death: keep the dead task, or delete it if the queue says so. Returns the finished lease.
function die(queue, member, held, outcome, ended_at, reason, failure)
  local finished = pack_finished(queue.key, member, held, outcome + DIED, ended_at, reason)
  if queue.spec.deletes_exhausted then
    drop(queue, member, held.name, held.flags % 2 == IS_LONG, ended_at, held.flags)
  else
    keep_attempt(queue, member, held, ended_at, failure)
    held.reason = reason
    held.ready_at = ended_at
    set(queue, AS_HELD .. member, pack_held(held))
    put(queue, DEAD, held.tag, member, text_of(ended_at), held.priority)
  end
  change(queue, held.tag, DIED_TOTAL, 1)
  note(queue, finished)
  return finished
end

-- Expire the lease of a task at its eta, which is a text. Returns the finished lease.
function expire(queue, member, held, eta)
  local ended_at = tonumber(eta)
  queue.ended = queue.ended + 1
  take_leased(queue, held.tag, member)
  change(queue, held.tag, EXPIRED_TOTAL, 1)
  if is_exhausted(queue, held) then
    return die(queue, member, held, EXPIRED, ended_at, EXPIRED_REASON, EXPIRED_FAILURE)
  end
  local finished = pack_finished(queue.key, member, held, EXPIRED, ended_at, '')
  local flags = held.flags
  keep_attempt(queue, member, held, ended_at, EXPIRED_FAILURE)
  if held.flags ~= flags then set(queue, AS_HELD .. member, pack_held(held)) end
  put(queue, READY, held.tag, member, eta, held.priority)
  note(queue, finished)
  return finished
end
