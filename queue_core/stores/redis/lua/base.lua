-- The base of all other files: the names of keys, ids as members, and a buffer that writes variadic commands.
-- The files are joined into one function library in the order of redis/calls.py.
-- Instants are microseconds since the epoch. Lua's doubles hold them exactly below 2^53, the year 2255.

-- While a library is loaded it can use nothing but `redis.register_function`; the first call of a function binds these.
local call, byte, char, sub, rep, fmt, concat, floor, min, max, pack, parse, json_of

local function bind()
  call = redis.call
  byte, char, sub, rep, fmt, concat = string.byte, string.char, string.sub, string.rep, string.format, table.concat
  floor, min, max = math.floor, math.min, math.max
  pack, parse, json_of = struct.pack, struct.unpack, cjson.encode
end

-- Register a function under the library's prefix; `flags` as Redis names them, none by default.
local function register(name, callback, flags)
  redis.register_function({
    function_name = PREFIX .. name,
    callback = function(keys, args)
      if not call then bind() end
      return callback(keys, args)
    end,
    flags = flags or {},
  })
end

local MOST_CELLS = 4000   -- of one command: `unpack` has a limit of some 8,000
local MOST_KEYSETS = 1000
local IDS = 'towline:{:ids}'

-- `towline:{queue}` is a hash with all that is found by name, so that a call reads and writes it in one command each.
-- Its fields, where a member (see `member_of`) is the body of a task:
--   .          the queue's settings
--   *          the settings that no function reads, if there are any
--   #          exists once a task has had its own bound of leases
--   - = =tag   counters of the untagged tasks, of all tagged ones, of one tag's; in a limited queue with its lane
--   +member    the lease record (`held`) of a task, from its first lease on, with its own bound of leases, if any
--   &member    the last attempts of a task, a line of JSON each, from its first unsuccessful lease on
--   %member    the progress that a handler reported last, as JSON, and
--   $member    its checkpoint, if it ever did; flags of `held` tell which of these three there are
--   @worker    when a worker was first seen and retired
--   !session   the last call of a session, and its answer
-- All other keys of the queue begin with that key, so that they share its hash slot.
local OWN, ONLY_KEPT, HAS_BOUNDS = '.', '*', '#'
local UNTAGGED, TAGGED, AS_HELD, AS_WORKER, AS_SESSION = '-', '=', '+', '@', '!'
local ATTEMPTS, PROGRESS, CHECKPOINT = '&', '%', '$'

local keysets, keyset_count = {}, 0

local function keys_of(key)
  local keys = keysets[key]
  if keys then return keys end
  if keyset_count >= MOST_KEYSETS then keysets, keyset_count = {}, 0 end
  keys = {
    payloads = key .. ':p',        -- hash: payloads that are too long for a body
    leased = key .. ':l',          -- sorted set by eta: LEASED
    ready_tagged = key .. ':R',    -- sorted sets by eta: READY with a tag, without one, of one tag
    ready = key .. ':r',
    ready_of = key .. ':r:',
    delayed_all = key .. ':D',     -- DELAYED: all, without a tag, of one tag
    delayed = key .. ':d',
    delayed_of = key .. ':d:',
    dead_all = key .. ':X',        -- DEAD by instant of death: all, without a tag, of one tag
    dead = key .. ':x',
    dead_of = key .. ':x:',
    held_all = key .. ':H',        -- sorted sets by eta: held back by limits of their tags, all and of one tag
    held_of = key .. ':h:',
    rotation = key .. ':f',        -- sorted set by place: fields of the counters of the tags that have READY tasks
    opens = key .. ':O',           -- sorted set: tags, by when their lanes next admit a task by time alone
    names = key .. ':n',           -- hash: a given name's member
    tombs = key .. ':N',           -- sorted set by name: names of deleted tasks, and until when they stay taken
    tags = key .. ':t',            -- sorted set by tag: tags that have counters
    samples = key .. ':s',         -- list: finished leases
    workers = key .. ':w',         -- sorted set: workers by when they were last active, as far as that is kept
    stored = key .. ':b',          -- string: bytes of all payloads, as far as they are counted
    block = key .. ':i',           -- string: ids left of a block; in a cluster only
    sessions = key .. ':k',        -- sorted set: sessions by when they were last active, as far as that is kept
    kept = key .. ':K',            -- hash: bytes that sessions keep, and until when those were in use that are forgotten
  }
  keysets[key] = keys
  keyset_count = keyset_count + 1
  return keys
end

-- Return the names of the sets of a priority: those of READY and held tasks, but for `held_all`, and the rotation of
-- the tags whose first task has it. Each priority has its own, so that a queue without priorities has no more sets.
local function at_priority(keys, priority)
  if priority == 0 then return keys end
  local own = keys[priority]
  if not own then
    local key = sub(keys.payloads, 1, -3)
    own = {
      ready_tagged = key .. ':R' .. priority,
      ready = key .. ':r' .. priority,
      ready_of = key .. ':r' .. priority .. ':',
      held_of = key .. ':h' .. priority .. ':',
      rotation = key .. ':f' .. priority,
    }
    keys[priority] = own
  end
  return own
end

-- Return a task's member: its id in decimal behind a letter for the number of digits, so that members sort as ids.
local function member_of(id)
  local digits = fmt('%d', id)
  return char(96 + #digits) .. digits
end

-- Return whether a field of a queue's hash is a member.
local function is_member(field)
  return field ~= '' and byte(field) > 96
end

local function id_of(member)
  return tonumber(sub(member, 2))
end

local function is_before(eta, member, other_eta, other_member)
  if eta ~= other_eta then return eta < other_eta end
  return id_of(member) < id_of(other_member)
end

-- Round to the nearest whole number, halves to the even one, as Python does.
local function round(number)
  local below = floor(number)
  local rest = number - below
  if rest > 0.5 or (rest == 0.5 and below % 2 == 1) then return below + 1 end
  return below
end

-- Return a number as text: as a number it costs a command several times as much, as Redis writes it as a double.
local function text_of(instant)
  return fmt('%d', instant)
end

-- Collect fields of the queue's own hash, which `flush` or `finish` writes in one command.
local function set(queue, field, cell)
  local cells, size = queue.cells, queue.cell_count
  cells[size + 1], cells[size + 2] = field, cell
  queue.cell_count = size + 2
end

-- Collect other writes, by command and key, where they are not hot.
local function later(queue, command, key, cell, other)
  local writes = queue.writes
  if not writes then
    writes = { ZREM = {}, ZADD = {}, HDEL = {}, HSET = {} }
    queue.writes = writes
  end
  local cells = writes[command][key]
  if not cells then
    writes[command][key] = { cell, other }
    return
  end
  local size = #cells
  cells[size + 1] = cell
  if other ~= nil then cells[size + 2] = other end
end

local function call_many(command, key, cells)
  local size = #cells
  if size <= MOST_CELLS then
    if size > 0 then call(command, key, unpack(cells)) end
    return
  end
  for first = 1, size, MOST_CELLS do
    call(command, key, unpack(cells, first, min(first + MOST_CELLS - 1, size)))
  end
end

local function held_fields(members)
  local fields = {}
  for index, member in ipairs(members) do fields[index] = AS_HELD .. member end
  return fields
end

-- Read fields of a hash, or scores of a sorted set, for up to some thousand members; `false` where there is none.
local function read_many(command, key, members)
  local size = #members
  if size == 0 then return {} end
  if size <= MOST_CELLS then return call(command, key, unpack(members)) end
  local found = {}
  for first = 1, size, MOST_CELLS do
    for _, cell in ipairs(call(command, key, unpack(members, first, min(first + MOST_CELLS - 1, size)))) do
      found[#found + 1] = cell
    end
  end
  return found
end

-- States and counters of tasks, as they stand in a packed row of counters.
local READY, DELAYED, LEASED, DEAD, ADDED, LEASES, DELETED_TOTAL, RELEASED_TOTAL, EXPIRED_TOTAL, DIED_TOTAL =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local COUNTERS = 10
local LAST = 11                           -- of one tag: when it changed; of all (un)tagged: samples noted
local IS_CHANGED = 12
-- In a limited queue the row goes on with: the tasks of a tag that its limits hold back; when its bucket is full again;
-- its place in the rotation, 0 for none; the priority of its first task there. Of all tagged tasks these are: how many
-- are held; the same of the whole queue's bucket; the last place that was given.
local IN_LANE, FULL_AT, AT_PLACE, AT_RANK = 13, 14, 15, 16
local COUNTS = '>I6I6I6I6I6I6I6I6I6I6I7'
local IN_LANE_STATE = 5                   -- the number of the state of tasks that are held, in answers
local COUNTED = 4                         -- a flag, as the next: whether the bytes of its payloads are counted
local PAUSED = 1
local READ = 5                            -- how many cells `open` reads before those of the verb

-- The first letter of an answer when nothing was done. Other answers begin with an `o` and these flags.
local UNKNOWN, MOVED, NO_IDS, RETIRED, TOO_LONG = 'u', 'm', 'i', 'r', 'l'
local HAS_WAITERS, UNSETTLED, REFUSED, ADMITTED = 1, 2, 4, 8

local ANY_TAG, SOME_TAGS, NO_TAG, OLDEST_TAG = 0, 1, 2, 3  -- kinds of filters
local SETTLED_PER_CALL, ONE_MORE = 500, '501'
local NOTHING = {}
local WORKERS_EXAMINED = 4                -- per new worker
local FORGOTTEN_AFTER = 30 * 86400e6
local KEPT_SECONDS = 600                  -- answers, unless there are too many

-- All files after the next two are blocks of their own, as Lua allows 200 locals in all; the functions that a block
-- defines for later ones are declared here.
local reads, changes, changes_beside
local is_set, spec_of, use_priority, with_kept, read_queue, open_fenced, open, refusal_of_moved, waiters_flag, counts_for, counters_of, change, note,
  flush, finish
local TAKE, PLACE, take_delayed, take_leased, take_dead, entered, put, put_waiting,
  place_of, discount, drop, is_exhausted, keep_attempt, die, expire
local ready_sets, all_ready_sets, sets_of, accepts, set_of, fields_of, gauge, pack_task
local settle, settle_used_up
-- Functions of several files, in tables, as each of these is one local.
local names, adding, leasing, lanes, rotation, sessions, holding = {}, {}, {}, {}, {}, {}, {}
