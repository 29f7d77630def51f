-- The settings of a queue as they are packed: limits, and the priorities that its tasks have.

-- Packed settings: these; the limits of each tag and of the queue, if it has any; its priorities beside 0, each as a
-- bit, once a task had one; the new place of a moved queue.
local SETTINGS = '>BBI8dI4ddI8d'
local SETTINGS_BYTES = 62
local LIMITS, LIMITS_BYTES = '>I4I8I4I4I8I4B', 33  -- twice: most in flight, interval, burst; 0: none. 1: fair
local DELETES_EXHAUSTED, LIMITED, HAS_PRIORITIES = 2, 8, 16  -- flags, as PAUSED
local NO_PRIORITIES = { 0 }
local MOST_SPECS = 1000

local specs, spec_count = {}, 0

function is_set(flags, flag)
  return floor(flags / flag) % 2 == 1
end

local function limits_of(most, interval, burst)
  if most == 0 and interval == 0 then return nil end
  return { most = most > 0 and most or nil, interval = interval > 0 and interval or nil, burst = burst }
end

-- Parse the limits of a queue, if it has any, and its priorities, the highest first.
local function parse_extensions(spec, settings)
  local at = SETTINGS_BYTES
  spec.ranks = NO_PRIORITIES
  if is_set(spec.flags, LIMITED) then
    local tag_most, tag_interval, tag_burst, most, interval, burst, fair = parse(LIMITS, settings, at + 1)
    spec.limits = sub(settings, at + 1, at + LIMITS_BYTES)
    spec.lane, spec.room = limits_of(tag_most, tag_interval, tag_burst), limits_of(most, interval, burst)
    spec.is_fair = fair == 1
    at = at + LIMITS_BYTES
  end
  if is_set(spec.flags, HAS_PRIORITIES) then
    local bits = parse('>I2', settings, at + 1)
    spec.ranks, spec.has_priorities = {}, {}
    for priority = 9, 0, -1 do
      if priority == 0 or is_set(bits, 2 ^ priority) then
        spec.ranks[#spec.ranks + 1] = priority
        spec.has_priorities[priority] = true
      end
    end
    at = at + 2
  end
  spec.moved_to = sub(settings, at + 1)
  spec.before_moved = sub(settings, 1, at)
end

function spec_of(settings)
  local spec = specs[settings]
  if spec then return spec end
  if spec_count >= MOST_SPECS then specs, spec_count = {}, 0 end
  local _, flags, lease_us, most_seconds, most_leases, retry_min, retry_max, retention, lease_seconds =
    parse(SETTINGS, settings)
  spec = {
    flags = flags,
    is_paused = is_set(flags, PAUSED),
    is_counted = is_set(flags, COUNTED),
    deletes_exhausted = is_set(flags, DELETES_EXHAUSTED),
    lease_us = lease_us,
    lease_seconds = lease_seconds,
    most_seconds = most_seconds,
    most_leases = most_leases > 0 and most_leases or nil,
    retry_min = retry_min,
    retry_max = retry_max,
    retention = retention,
    limits = '',                   -- as packed
    is_limited = is_set(flags, LIMITED),
    lane = false,                  -- the limits of each tag, as a table
    room = false,                  -- the limits of the queue
    is_fair = false,
    has_priorities = false,        -- or a table with those that are in use
  }
  parse_extensions(spec, settings)
  specs[settings] = spec
  spec_count = spec_count + 1
  return spec
end

-- Remember that tasks of the queue have a priority, so that all verbs look into its sets from now on.
function use_priority(queue, priority)
  local spec = queue.spec
  if spec.has_priorities and spec.has_priorities[priority] then return end
  local bits, flags = 2 ^ priority, spec.flags
  if spec.has_priorities then
    for _, known in ipairs(spec.ranks) do bits = bits + (known > 0 and 2 ^ known or 0) end
  else
    flags = flags + HAS_PRIORITIES
  end
  local fixed = SETTINGS_BYTES + #spec.limits
  queue.settings = sub(queue.settings, 1, 1) .. char(flags) .. sub(queue.settings, 3, fixed) .. pack('>I2', bits)
    .. spec.moved_to
  queue.spec = spec_of(queue.settings)
  call('HSET', queue.key, OWN, queue.settings)
end

-- Return new settings of a known queue with what it keeps: pause, fence, priorities.
function with_kept(settings, known)
  local spec, flags = known.spec, byte(settings, 2)
  for _, flag in ipairs({ PAUSED, COUNTED, HAS_PRIORITIES }) do
    if is_set(spec.flags, flag) then flags = flags + flag end
  end
  return sub(settings, 1, 1) .. char(flags) .. sub(settings, 3)
    .. sub(known.settings, SETTINGS_BYTES + #spec.limits + 1)
end
