-- Idempotency: how verbs are registered, and how repeated calls are answered (ADR 28). A verb that changes something
-- gets a session and a call number before its own arguments, and keeps its answer: the same number gets the same answer
-- and changes nothing; a lower one is outdated and is refused. Behind the number of a client's call is its fingerprint:
-- a call whose number another one has, by the fingerprint kept with the answer, is refused. A repeat has its age behind
-- it: it is refused when its answer may be forgotten.

local STALE, REUSED, FORGOTTEN = 's', 'k', 'f'
local NOTED_EVERY, SESSIONS_EXAMINED = 60e6, 16
local FORGOTTEN_AT, BYTES = 'forgotten_at', 'bytes'
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

-- Return the number of a call, its fingerprint, and the seconds since it was first sent; nil where it has none.
function sessions.numbered(text)
  local number = tonumber(text)
  if number then return number end
  local digits, meaning, age = string.match(text, '^(%d+)#?(%x*)@?(%d*)$')
  return tonumber(digits), meaning ~= '' and meaning or nil, tonumber(age)
end

-- Return the refusal of a call that was sent so many seconds ago, if its answer may be forgotten; nil: it is a new call.
function sessions.refusal_of_forgotten(key, now, age)
  if not age then return nil end
  local forgotten_at = call('HGET', keys_of(key).kept, FORGOTTEN_AT)
  if age > KEPT_SECONDS or forgotten_at and tonumber(forgotten_at) >= now - age * 1e6 then return FORGOTTEN end
  return nil
end

-- Count the bytes of kept answers; returns whether there are too many.
function sessions.count_bytes(key, change)
  return change ~= 0 and call('HINCRBY', keys_of(key).kept, BYTES, text_of(change)) > MOST.kept_bytes
end

-- Forget a session: its number and its answer.
local function forget_session(queue, session)
  local field = AS_SESSION .. session
  sessions.count_bytes(queue.key, -call('HSTRLEN', queue.key, field))
  call('HDEL', queue.key, field)
  call('ZREM', queue.keys.sessions, session)
end

-- Forget clients' sessions that were noted longest ago, and keep until when that was; a connection's own only when it
-- has long made no call.
local function forget_oldest(queue)
  local forgotten_at = 0
  local oldest = call('ZRANGE', queue.keys.sessions, 0, SESSIONS_EXAMINED - 1, 'WITHSCORES')
  for index = 1, #oldest, 2 do
    local session, noted_at = oldest[index], tonumber(oldest[index + 1])
    local is_clients = sub(session, 1, 2) == 'c.'
    if AS_SESSION .. session ~= queue.session and (is_clients or noted_at < queue.now - KEPT_SECONDS * 5e5) then
      forget_session(queue, session)
      if is_clients then forgotten_at = max(forgotten_at, noted_at + NOTED_EVERY) end
    end
  end
  local before = forgotten_at > 0 and tonumber(call('HGET', queue.keys.kept, FORGOTTEN_AT) or 0)
  if before and before < forgotten_at then call('HSET', queue.keys.kept, FORGOTTEN_AT, text_of(forgotten_at)) end
end

-- Note now and then that a session is in use, and forget a few that were long unused, or are too many.
local function note_session(queue)
  call('ZADD', queue.keys.sessions, queue.at, sub(queue.session, 2))
  local old = text_of(queue.now - KEPT_SECONDS * 1e6 - NOTED_EVERY)
  for _, session in ipairs(call('ZRANGEBYSCORE', queue.keys.sessions, '-inf', old, 'LIMIT', '0', '8')) do
    forget_session(queue, session)
  end
  queue.noted_at = queue.now
  if call('ZCARD', queue.keys.sessions) > MOST.sessions then forget_oldest(queue) end
end

-- Keep the answer of a queue's call.
function sessions.keep(queue, answer, before, leases)
  local noted_at = queue.noted_at
  if not noted_at or queue.now - noted_at > NOTED_EVERY or queue.now < noted_at then note_session(queue) end
  local kept = sessions.kept_answer(queue.number, queue.noted_at, queue.meaning, answer, before, leases)
  if sessions.count_bytes(queue.key, #kept - queue.kept_bytes) then forget_oldest(queue) end
  set(queue, queue.session, kept)
end

-- Return the fingerprint at the end of `kept`, behind its first part, if there is one. A lease there begins with a zero.
local function meaning_in(kept, at)
  local size = #kept
  return size - at + 1 >= MEANING and byte(kept, size - MEANING + 1) > 0 and sub(kept, -MEANING) or nil
end

-- Return the kept answer of a repeated call, or the refusal of an outdated one; nil: it is a new call.
function sessions.repeated_answer(key, kept, number, now, meaning)
  local last, _, form, length, at = parse(KEPT, kept)
  local known = meaning_in(kept, at + length)
  if known and meaning and known ~= meaning and floor(number / MOST.calls) == floor(last / MOST.calls) then return REUSED end
  if number > last then return nil end
  if number < last then return STALE end
  local answer = sub(kept, at, at + length - 1)
  if form == VERBATIM then return answer end
  return answer .. leases_again(key, sub(kept, at + length, known and -MEANING - 1 or -1), now)
end

-- Pack an answer to keep it: whole or, if it ends with leases, the part before them and where to find them again; then
-- the fingerprint of the call.
function sessions.kept_answer(number, noted_at, meaning, answer, before, leases)
  if before then return pack(KEPT, number, noted_at, WITH_LEASES, #before) .. before .. leases .. (meaning or '') end
  return pack(KEPT, number, noted_at, VERBATIM, #answer) .. answer .. (meaning or '')
end

-- Arguments: a client's session; the first and the last number of its calls' functions; its fingerprint, '' for none. Has
-- those that still come refused as outdated. Answers 0 when one of them took effect before. While there is no queue, that
-- is noted for the one to come.
local function close_call(keys, args)
  local key, field = keys[1], AS_SESSION .. args[3]
  local first, last = parse('>I8I8', args[4])
  local closed = sessions.kept_answer(last, 0, args[5], STALE)
  local settings, kept = unpack(call('HMGET', key, OWN, field))
  if not settings then
    call('HSET', key .. ':q', field, closed)
    call('EXPIRE', key .. ':q', KEPT_SECONDS)
    return 'o\0' .. '1'
  end
  if kept and parse('>I8', kept) >= first then return 'o\0' .. '0' end
  call('HSET', key, field, closed)
  sessions.count_bytes(key, #closed - (kept and #kept or 0))
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
    local key, number, meaning, age = keys[1] .. ':k:' .. args[1], sessions.numbered(args[2])
    local kept = call('GET', key)
    local answer = kept and sessions.repeated_answer(keys[1], kept, number, 0, meaning)
    if answer then return answer end
    if not kept and age and age > KEPT_SECONDS then return FORGOTTEN end
    local is_refused
    answer, is_refused = verb(keys, args)
    if is_refused then return answer end
    call('SET', key, sessions.kept_answer(number, 0, meaning, answer), 'EX', KEPT_SECONDS)
    return answer
  end, grows)
end

changes_beside('close_call', close_call)
