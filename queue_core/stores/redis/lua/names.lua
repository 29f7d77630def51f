-- Given names: the tasks that have them, and how long a deleted task's name stays taken.

local TOMB_GRACE = 60e6           -- a tomb is kept so much longer, as a clock may be set back a little
local TOMBS_EXAMINED = 3          -- per name that is buried

-- A tomb's member is its name, NUL and its end in 16 digits: so the set is sorted by name.
local function tomb_of(queue, name)
  return call('ZRANGEBYLEX', queue.keys.tombs, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', 0, 1)[1]
end

function names.end_of_tomb(tomb)
  return tonumber(sub(tomb, -16))
end

local function tomb_member(name, until_at)
  return name .. '\0' .. fmt('%016.0f', until_at)
end

-- Return until when a deleted task's name is taken; nil: it is not.
function names.taken_until(queue, name)
  local tomb = tomb_of(queue, name)
  return tomb and names.end_of_tomb(tomb)
end

function names.unearth(queue, name)
  local tomb = tomb_of(queue, name)
  if tomb then later(queue, 'ZREM', queue.keys.tombs, tomb) end
end

-- Take a name that no task has until then, and forget a few whose retention is over.
function names.set_tomb(queue, name, until_at)
  later(queue, 'ZADD', queue.keys.tombs, 0, tomb_member(name, until_at))
  for _, tomb in ipairs(call('ZRANDMEMBER', queue.keys.tombs, TOMBS_EXAMINED)) do
    if names.end_of_tomb(tomb) < queue.now - TOMB_GRACE then later(queue, 'ZREM', queue.keys.tombs, tomb) end
  end
end

-- Separate a name from its deleted task.
function names.bury_name(queue, name, until_at)
  later(queue, 'HDEL', queue.keys.names, name)
  names.set_tomb(queue, name, until_at)
end

-- Return the member of the task of a chosen name, if it is one. That task may have been given another.
function names.chosen_member(name)
  local digits = string.match(name, '^_(%d+)$')
  return digits and #digits <= 18 and char(96 + #digits) .. digits or nil
end

-- Return the member and body of the task of a given name or of a chosen one (`_42`); nil: there is none.
function names.member_of_name(queue, name)
  local member = call('HGET', queue.keys.names, name)
  if member then return member, call('HGET', queue.key, member) end
  member = names.chosen_member(name)
  local body = member and call('HGET', queue.key, member)
  if not body then return nil end
  local _, given = heads_of(body)
  if given ~= '' then return nil end
  return member, body
end
