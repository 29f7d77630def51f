-- The packing of a task, a lease and a finished lease; binary.py packs and parses the same.

local HELD = '>I4I8I8BHHHHH'
local FINISHED = '>BI4I8I8I8I8HHHH'
local LEASE = '>I8I8I8I8I4I4'
local BODY_BYTES = 13             -- flags, added_at in 8 bytes, lengths of tag and name in 2 bytes each
local IS_LONG = 1                 -- flag of a body and of `held`: the payload is in a hash of its own
local LONGEST_PAYLOAD = 2 ^ 31

local DELETED, RELEASED, EXPIRED = 1, 2, 3
local DIED = 8

-- Return tag and name ("": none) of a body, and whether its payload is a long one.
local function heads_of(body)
  local flags, _, _, _, _, _, _, _, _, t1, t2, n1, n2 = byte(body, 1, BODY_BYTES)
  local tag_end = BODY_BYTES + t1 * 256 + t2
  return sub(body, BODY_BYTES + 1, tag_end), sub(body, tag_end + 1, tag_end + n1 * 256 + n2), flags == IS_LONG
end

-- Return the bytes of a payload; `long` is one that is not in the body.
local function payload_bytes(body, long)
  if long then return #long end
  local tag, name = heads_of(body)
  return #body - BODY_BYTES - #tag - #name
end

-- The lease record (`held`) of a task: how many leases were charged, when it was leased last, its eta before that, the
-- ends of leases that were cut short; and its tag and name again, so that the end of a lease need not read the body.
-- Its own bound of leases comes last, in 4 bytes, if it has one, where an older program ignores it.
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
  local name_at = at + tag_bytes
  local worker_at = name_at + name_bytes
  local reason_at = worker_at + worker_bytes
  local bound_at = reason_at + reason_bytes
  return {
    leases = leases,
    leased_at = leased_at,
    ready_at = ready_at,
    flags = flags,
    spent = spent,
    tag = sub(packed, at, name_at - 1),
    name = sub(packed, name_at, worker_at - 1),
    worker = sub(packed, worker_at, reason_at - 1),
    reason = sub(packed, reason_at, bound_at - 1),
    bound = bound_at < #packed and parse('>I4', packed, bound_at) or nil,
  }
end

local function pack_held(held)
  local spent = held.spent
  local fixed = pack(HELD, held.leases, held.leased_at, held.ready_at, held.flags, spent and #spent or 0,
    #held.tag, #held.name, #held.worker, #held.reason)
  local bound = held.bound and pack('>I4', held.bound) or ''
  if not spent or #spent == 0 then return fixed .. held.tag .. held.name .. held.worker .. held.reason .. bound end
  local parts = { fixed }
  for index, instant in ipairs(spent) do
    parts[index + 1] = pack('>I8', instant)
  end
  parts[#parts + 1] = held.tag .. held.name .. held.worker .. held.reason .. bound
  return concat(parts)
end

-- Return the lease record of a task before its first lease.
local function never_held(tag, name, is_long)
  return { leases = 0, leased_at = 0, ready_at = 0, flags = is_long and IS_LONG or 0, tag = tag, name = name,
    worker = '', reason = '' }
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

-- Pack a finished lease; `outcome` is one of the above, plus DIED.
local function pack_finished(member, held, outcome, ended_at, reason)
  return pack(FINISHED, outcome, held.leases, max(0, held.leased_at - held.ready_at), max(0, ended_at - held.leased_at),
    ended_at, id_of(member), #held.tag, #held.name, #held.worker, #reason)
    .. held.tag .. held.name .. held.worker .. reason
end

-- Pack a lease as its holder gets it; the payload is the end of `body`, or `payload`.
local function pack_lease(member, held, expires_at, body, payload)
  return pack(LEASE, id_of(member), held.leased_at, expires_at, held.ready_at, held.leases,
    #body + (payload and #payload or 0)) .. body .. (payload or '')
end
