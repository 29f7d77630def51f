-- Idempotency: how verbs are registered, and how repeated calls are answered (ADR 28). A verb that changes something
-- gets a session and a call number before its own arguments, and keeps its answer: the same number gets the same answer
-- and changes nothing; a lower one is outdated and is refused. Behind the number of a client's call is its fingerprint:
-- a call whose number another one has, by the fingerprint kept with the answer, is refused.

local STALE, REUSED = 's', 'k'
local CALLS = 64                          -- numbers of one client's call: MAX_CALLS of redis/calls.py
local MEANING = 16                        -- characters of a fingerprint
local VERBATIM, WITH_LEASES = 'a', 'l'
local KEPT = '>I8I8c1I4'                  -- number, when the session was last noted, form, length of the first part

-- Return the leases of `kept` that are still held at `now` as they were granted.
local function leases_again(key, kept, now)
  local keys = keys_of(key)
  local leases = {}
  for at = 1, #kept, 16 do
    local id, leased_at = parse('>I8I8', kept, at)
    local member = member_of(id)
    local expires_at = call('ZSCORE', keys.leased, member)
    local held = expires_at and parse_held(call('HGET', key, AS_HELD .. member))
    if held and held.leased_at == leased_at and tonumber(expires_at) > now then
      local payload = held.flags % 2 == IS_LONG and call('HGET', keys.payloads, member) or ''
      local body = call('HGET', key, member)
      if is_set(held.flags, HAS_CHECKPOINT) then body, payload = with_checkpoint(key, member, body, payload) end
      leases[#leases + 1] = pack_lease(member, held, tonumber(expires_at), body, payload)
    end
  end
  return concat(leases)
end

-- Return the number of a call and its fingerprint, nil where it has none.
function numbered(text)
  local number = tonumber(text)
  if number then return number, nil end
  return tonumber(sub(text, 1, -MEANING - 2)), sub(text, -MEANING)
end

-- Return the fingerprint at the end of `kept`, behind its first part, if there is one. A lease there begins with a zero.
local function meaning_in(kept, at)
  local size = #kept
  return size - at + 1 >= MEANING and byte(kept, size - MEANING + 1) > 0 and sub(kept, -MEANING) or nil
end

-- Return the kept answer of a repeated call, or the refusal of an outdated one; nil: it is a new call.
function repeated_answer(key, kept, number, now, meaning)
  local last, _, form, length, at = parse(KEPT, kept)
  local known = meaning_in(kept, at + length)
  if known and meaning and known ~= meaning and floor(number / CALLS) == floor(last / CALLS) then return REUSED end
  if number > last then return nil end
  if number < last then return STALE end
  local answer = sub(kept, at, at + length - 1)
  if form == VERBATIM then return answer end
  return answer .. leases_again(key, sub(kept, at + length, known and -MEANING - 1 or -1), now)
end

-- Pack an answer to keep it: whole or, if it ends with leases, the part before them and where to find them again; then
-- the fingerprint of the call.
function kept_answer(number, noted_at, meaning, answer, before, leases)
  if before then return pack(KEPT, number, noted_at, WITH_LEASES, #before) .. before .. leases .. (meaning or '') end
  return pack(KEPT, number, noted_at, VERBATIM, #answer) .. answer .. (meaning or '')
end

-- Arguments: a client's session; the first and the last number of its calls' functions; its fingerprint, '' for none. Has
-- those that still come refused as outdated. Answers 0 when one of them took effect before. While there is no queue, that
-- is noted for the one to come.
local function close_call(keys, args)
  local key, field = keys[1], AS_SESSION .. args[3]
  local first, last = parse('>I8I8', args[4])
  local closed = kept_answer(last, 0, args[5], STALE)
  local settings, kept = unpack(call('HMGET', key, OWN, field))
  if not settings then
    call('HSET', key .. ':q', field, closed)
    call('EXPIRE', key .. ':q', KEPT_SECONDS)
    return 'o\0' .. '1'
  end
  if kept and parse('>I8', kept) >= first then return 'o\0' .. '0' end
  call('HSET', key, field, closed)
  call('ZADD', keys_of(key).sessions, call('TIME')[1] .. '000000', args[3])
  return 'o\0' .. '1'
end

-- Register a verb that only reads.
function reads(name, verb)
  register(name, verb, { 'no-writes' })
end

-- Register a verb that changes a queue: it calls `open` and `finish`, which keep its answer in the queue's hash. One
-- that `grows` the data is refused when Redis has reached its maxmemory.
function changes(name, verb, grows)
  register(name, verb, grows ~= 'grows' and { 'allow-oom' } or {})
end

-- Register a verb that changes something else, or several queues: its answer is kept beside the first key, unless the
-- verb says that it changed nothing and may be tried again.
function changes_beside(name, verb, grows)
  changes(name, function(keys, args)
    local key, number, meaning = keys[1] .. ':k:' .. args[1], numbered(args[2])
    local kept = call('GET', key)
    local answer = kept and repeated_answer(keys[1], kept, number, 0, meaning)
    if answer then return answer end
    local is_refused
    answer, is_refused = verb(keys, args)
    if is_refused then return answer end
    call('SET', key, kept_answer(number, 0, meaning, answer), 'EX', KEPT_SECONDS)
    return answer
  end, grows)
end

changes_beside('close_call', close_call)
