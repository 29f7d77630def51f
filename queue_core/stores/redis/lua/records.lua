-- The packing of a task, a lease and a finished lease; binary.py packs and parses the same.

local HELD = '>I4I8I8BHHHHH'
local HELD_FLAGS = 21             -- the index of the flags in it
local FINISHED = '>BI4I8I8I8I8HHHH'  -- behind it, `added` and four texts
local LEASE = '>I8I8I8I8I4I4'
local BODY_BYTES = 13             -- flags, added_at in 8 bytes, lengths of tag and name in 2 bytes each
local IS_LONG = 1                 -- flag of a body and of `held`: the payload is in a hash of its own
local HAS_HEADERS = 2             -- flag of a body: headers and, in 2 bytes, their length come before the payload
local PRIORITY = 16               -- the flags of a body plus so many times its priority are its first byte
local HAS_ADDED = 2               -- flag of `held`: it has `added`, which records of layout 3 lack
local HAS_ATTEMPTS, HAS_PROGRESS, HAS_CHECKPOINT = 4, 8, 16  -- flags of `held`: its rare parts
local HAS_PRIORITY = 32           -- flag of `held`: it has a priority
local NEVER_ADDED = '\0\0\0\0\0\0\0\0'
-- Of ids that Celery gave: `HELD`, the highest flag of `held`, says that the headers of the body have one, `FINISHED`, a
-- flag of a finished lease, that it is the last text, behind its length in a byte. A table, as Lua has 200 locals.
local celery = { HELD = 64, FINISHED = 32 }
local LONGEST_PAYLOAD = 2 ^ 31

local DELETED, RELEASED, EXPIRED, REMOVED = 1, 2, 3, 4
local DIED = 8
local KNOWS_ADDED = 16            -- flag of a finished lease, which those of layout 3 lack: it has `added`

-- Return tag and name ("": none) of a body, whether its payload is a long one, and its priority.
local function heads_of(body)
  local flags, _, _, _, _, _, _, _, _, t1, t2, n1, n2 = byte(body, 1, BODY_BYTES)
  local tag_end, priority = BODY_BYTES + t1 * 256 + t2, 0
  if flags >= PRIORITY then
    priority = floor(flags / PRIORITY)
    flags = flags - PRIORITY * priority
  end
  return sub(body, BODY_BYTES + 1, tag_end), sub(body, tag_end + 1, tag_end + n1 * 256 + n2),
    flags == 1 or flags == 3, priority  -- IS_LONG, with or without HAS_HEADERS
end

-- Return the length of the part of a body that is before the payload.
local function head_bytes(body)
  local flags, _, _, _, _, _, _, _, _, t1, t2, n1, n2 = byte(body, 1, BODY_BYTES)
  local size = BODY_BYTES + (t1 + n1) * 256 + t2 + n2
  if flags >= HAS_HEADERS and flags % PRIORITY >= HAS_HEADERS then return size + 2 + parse('>I2', body, size + 1) end
  return size
end

-- Return the id that Celery gave a task, from the headers of its body; "" for none.
function celery.id_of(body)
  local flags, _, _, _, _, _, _, _, _, t1, t2, n1, n2 = byte(body, 1, BODY_BYTES)
  if not flags or flags % PRIORITY < HAS_HEADERS then return '' end
  local bytes, at = parse('>I2', body, BODY_BYTES + (t1 + n1) * 256 + t2 + n2 + 1)
  local id = string.match(sub(body, at, at + bytes - 1), '"celery%-id":"([%w_.:@-]+)"') or ''
  return #id >= 8 and #id <= 200 and id or ''
end

-- Return the bytes of a payload; `long` is one that is not in the body.
local function payload_bytes(body, long)
  return long and #long or #body - head_bytes(body)
end

-- Return the prefixes of the fields of the rare parts that the flags of a lease record tell of.
local function parts_of(flags)
  local parts = {}
  if floor(flags / HAS_ATTEMPTS) % 2 == 1 then parts[1] = ATTEMPTS end
  if floor(flags / HAS_PROGRESS) % 2 == 1 then parts[#parts + 1] = PROGRESS end
  if floor(flags / HAS_CHECKPOINT) % 2 == 1 then parts[#parts + 1] = CHECKPOINT end
  return parts
end

-- The lease record (`held`) of a task: how many leases were charged, when it was leased last, its eta before that, the
-- ends of leases that were cut short; and its tag and name again, so that the end of a lease need not read the body.
-- Before these is `added`, when it was added, in 8 bytes as they are in the body. Behind them is its priority, in a byte,
-- if it has one. Its own bound of leases comes last, in 4 bytes, if it has one.
local function parse_held(packed)
  local leases, leased_at, ready_at, flags, spents, tag_bytes, name_bytes, worker_bytes, reason_bytes, at =
    parse(HELD, packed)
  local spent
  if spents > 0 then
    spent = {}
    for index = 1, spents do
      spent[index], at = parse('>I8', packed, at)
    end
  end
  local added = NEVER_ADDED
  if floor(flags / HAS_ADDED) % 2 == 1 then
    added = sub(packed, at, at + 7)
    at = at + 8
  else
    flags = flags + HAS_ADDED
  end
  local name_at = at + tag_bytes
  local worker_at = name_at + name_bytes
  local reason_at = worker_at + worker_bytes
  local priority, bound_at = 0, reason_at + reason_bytes
  if floor(flags / HAS_PRIORITY) % 2 == 1 then priority, bound_at = byte(packed, bound_at), bound_at + 1 end
  return {
    leases = leases,
    leased_at = leased_at,
    ready_at = ready_at,
    flags = flags,
    spent = spent,
    tag = sub(packed, at, name_at - 1),
    name = sub(packed, name_at, worker_at - 1),
    worker = sub(packed, worker_at, reason_at - 1),
    reason = sub(packed, reason_at, reason_at + reason_bytes - 1),
    added = added,
    priority = priority,
    bound = bound_at < #packed and parse('>I4', packed, bound_at) or nil,
  }
end

local function pack_held(held)
  local spent = held.spent
  local fixed = pack(HELD, held.leases, held.leased_at, held.ready_at, held.flags, spent and #spent or 0,
    #held.tag, #held.name, #held.worker, #held.reason)
  local bound = held.bound and pack('>I4', held.bound) or ''
  if held.priority > 0 then bound = char(held.priority) .. bound end
  if not spent or #spent == 0 then
    return fixed .. held.added .. held.tag .. held.name .. held.worker .. held.reason .. bound
  end
  local parts = { fixed }
  for index, instant in ipairs(spent) do
    parts[index + 1] = pack('>I8', instant)
  end
  parts[#parts + 1] = held.added .. held.tag .. held.name .. held.worker .. held.reason .. bound
  return concat(parts)
end

-- Return the lease record of a task before its first lease.
local function never_held(tag, name, is_long, body, priority)
  local flags = HAS_ADDED + (is_long and IS_LONG or 0) + (priority > 0 and HAS_PRIORITY or 0)
    + (celery.id_of(body) ~= '' and celery.HELD or 0)
  return { leases = 0, leased_at = 0, ready_at = 0, flags = flags, tag = tag, name = name, worker = '', reason = '',
    added = sub(body, 2, 9), priority = priority }
end

local function ahead_of(spent, now, another)
  local ahead = {}
  for _, instant in ipairs(spent or {}) do
    if instant > now then ahead[#ahead + 1] = instant end
  end
  if another and another > now then ahead[#ahead + 1] = another end
  return ahead
end

-- Return the first end from `expires_at` on that no earlier lease of the task had.
local function unspent_end(expires_at, ahead)
  local taken = {}
  for _, instant in ipairs(ahead) do taken[instant] = true end
  while taken[expires_at] do expires_at = expires_at + 1 end
  return expires_at
end

-- Return what a finished lease has of Celery's id, of a task with these flags of `held`: a flag and the last text.
function celery.part(key, member, flags)
  local id = flags >= celery.HELD and celery.id_of(call('HGET', key, member) or '') or ''
  if id == '' then return 0, '' end
  return celery.FINISHED, char(#id) .. id
end

-- Pack a finished lease of a task that is still there; `outcome` is one of the above, plus DIED.
local function pack_finished(key, member, held, outcome, ended_at, reason)
  local flag, last = celery.part(key, member, held.flags)
  return pack(FINISHED, outcome + KNOWS_ADDED + flag, held.leases, max(0, held.leased_at - held.ready_at),
    max(0, ended_at - held.leased_at), ended_at, id_of(member), #held.tag, #held.name, #held.worker, #reason)
    .. held.added .. held.tag .. held.name .. held.worker .. reason .. last
end

-- Return body and long payload ("": none) of a task as the next holder gets them: with a flag in the body and,
-- behind the payload, the checkpoint of an earlier holder and its length in 4 bytes.
local function with_checkpoint(key, member, body, payload)
  local checkpoint = call('HGET', key, CHECKPOINT .. member) or ''
  return char(byte(body) + 4) .. sub(body, 2), payload .. checkpoint .. pack('>I4', #checkpoint)
end

-- Pack a lease as its holder gets it; the payload is the end of `body`, or else `payload`, which is "" otherwise.
local function pack_lease(member, held, expires_at, body, payload)
  return pack(LEASE, id_of(member), held.leased_at, expires_at, held.ready_at, held.leases,
    #body + #payload) .. body .. payload
end
