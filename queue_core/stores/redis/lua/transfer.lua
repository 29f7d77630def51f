-- The transfer of a queue to or from another store: tasks as they were, and names of deleted tasks. Also the answers
-- that are kept for clients' sessions.

-- Arguments: now and the number of tasks; a block of ids; states and etas of all; then for each `held`, the body, its
-- long payload, and the rare parts that `held` tells of.
local function restore(keys, args)
  local now, number = parse('>I8I2', args[3])
  local queue, refusal = open_fenced(keys[1], now, args)
  if not queue then return refusal end
  if not adding.has_ids(queue, number, args[4]) then return NO_IDS end
  local tasks, at = { queue = queue, bodies = {}, payloads = {}, etas = {}, states = {}, held = {},
    parts = {} }, 6
  for index = 1, number do
    tasks.states[index], tasks.etas[index] = parse('>BI8', args[5], index * 9 - 8)
    tasks.held[index], tasks.bodies[index] = args[at], args[at + 1]
    at = at + 2
    if byte(tasks.bodies[index]) % 2 == IS_LONG then
      tasks.payloads[index] = args[at]
      at = at + 1
    end
    local flags = tasks.held[index] ~= '' and byte(tasks.held[index], HELD_FLAGS) or 0
    if flags >= HAS_ATTEMPTS then
      local last = at + #parts_of(flags) - 1
      tasks.parts[index] = { unpack(args, at, last) }
      at = last + 1
    end
  end
  local added = adding.add_tasks(queue, tasks, 1, number, args[4])
  return finish(queue, 'o' .. char(waiters_flag(queue)) .. added)
end

-- Arguments: now, limit; the name to go on after ("" is none). Answers end, length and name of each.
local function held_names(keys, args)
  local now, limit = parse('>I8I4', args[1])
  local queue, refusal = read_queue(keys[1], now)
  if not queue then return refusal end
  local from, parts = args[2] == '' and '-' or '(' .. args[2] .. '\1', {}
  while #parts < limit do
    local tombs = call('ZRANGEBYLEX', queue.keys.tombs, from, '+', 'LIMIT', 0, limit)
    for _, tomb in ipairs(tombs) do
      local until_at = names.end_of_tomb(tomb)
      if until_at > now and #parts < limit then
        local name = sub(tomb, 1, -18)
        parts[#parts + 1] = pack('>I8I2', until_at, #name) .. name
      end
    end
    if #tombs < limit then break end
    from = '(' .. tombs[#tombs]
  end
  return 'o\0' .. concat(parts)
end

-- Arguments: now; names and ends in turn.
local function hold_names(keys, args)
  local now = parse('>I8', args[3])
  local queue, refusal = open_fenced(keys[1], now, args)
  if not queue then return refusal end
  for index = 4, #args, 2 do
    local name, until_at = args[index], parse('>I8', args[index + 1])
    if until_at > now and call('HEXISTS', queue.keys.names, name) == 0 then
      until_at = max(until_at, names.taken_until(queue, name) or 0)
      names.unearth(queue, name)
      flush(queue)
      names.set_tomb(queue, name, until_at)
      flush(queue)
    end
  end
  return finish(queue, 'o\0')
end

-- Arguments: number, answer and how long it is kept, in seconds. Answers 0 and the kept number, if that is
-- not lower.
local function keep_answer(keys, args)
  local number = parse('>I8', args[3])
  local known = call('GET', keys[1])
  local last = known and parse('>I8', known)
  if last and last >= number then return 'o\0' .. '0' .. pack('>I8', last), true end
  call('SET', keys[1], args[3] .. args[4], 'EX', args[5])
  return 'o\0' .. '1'
end

changes('restore', restore, 'grows')
reads('held_names', held_names)
changes('hold_names', hold_names, 'grows')
changes_beside('keep_answer', keep_answer, 'grows')
