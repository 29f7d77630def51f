-- The finished leases of a queue: as samples, oldest first, and as its history, newest first.

local PIECE = 250              -- finished leases that `history` reads at once, and that it examines in one call
local EXAMINED = 5000
local FINISHED_BYTES = 45

-- Return a finished lease, as it was kept, in the present form.
local function with_added(finished)
  if byte(finished) >= KNOWS_ADDED then return finished end
  return sub(finished, 1, FINISHED_BYTES) .. NEVER_ADDED .. sub(finished, FINISHED_BYTES + 1)
end

-- Arguments: cursor, limit. Answers how many samples were ever noted, the number of the first that follows, and
-- samples.
local function samples(keys, args)
  local after, limit = parse('>I8I4', args[1])
  local queue, refusal = read_queue(keys[1], 0)
  if not queue then return refusal end
  local total = counts_for(queue, UNTAGGED)[LAST] + counts_for(queue, TAGGED)[LAST]
  local dropped = total - call('LLEN', queue.keys.samples)
  local first = max(after, dropped)
  local finished = limit > 0 and call('LRANGE', queue.keys.samples, first - dropped, first - dropped + limit - 1) or {}
  for index, row in ipairs(finished) do finished[index] = with_added(row) end
  return 'o\0' .. pack('>I8I8I4', dropped, first, #finished) .. concat(finished)
end

-- Arguments: now, how many of the last finished leases count (`history_keep`), the earliest end, the number before
-- which they are to be (0: any), how many are wanted, 1 when names follow; names, or ids of Celery's. Finished leases are numbered from 1.
-- Answers the number of the first that was examined, if there may be more before it, else 0; and number, size and
-- finished lease of each that was found, newest first.
local function history(keys, args)
  local now, keep, oldest_at, before, limit, by_name = parse('>I8I8I8I8I4B', args[1])
  local queue, refusal = read_queue(keys[1], now)
  if not queue then return refusal end
  local wanted = by_name == 1 and set_of({ unpack(args, 2) })
  local total = counts_for(queue, UNTAGGED)[LAST] + counts_for(queue, TAGGED)[LAST]
  local dropped = total - call('LLEN', queue.keys.samples)
  local oldest = max(dropped, total - keep)
  local last = before > 0 and min(before - 1, total) or total
  local parts, found, stop = {}, 0, max(oldest, last - EXAMINED)
  while last > stop and found < limit do
    local first = max(stop, last - PIECE)
    local rows = call('LRANGE', queue.keys.samples, text_of(first - dropped), text_of(last - dropped - 1))
    for index = #rows, 1, -1 do
      last = first + index - 1
      local row = with_added(rows[index])
      local flags, _, _, _, ended_at, id, tag_bytes, name_bytes, worker_bytes, reason_bytes, at = parse(FINISHED, row)
      at = at + #NEVER_ADDED
      local name = wanted and sub(row, at + tag_bytes, at + tag_bytes + name_bytes - 1)
      if wanted and name == '' then name = '_' .. text_of(id) end
      local is_wanted = not wanted or wanted[name]
      if not is_wanted and flags >= celery.FINISHED then
        is_wanted = wanted[sub(row, at + tag_bytes + name_bytes + worker_bytes + reason_bytes + 1)]
      end
      if ended_at >= oldest_at and is_wanted then
        found = found + 1
        parts[found] = pack('>I8I4', last + 1, #row) .. row
        if found == limit then break end
      end
    end
  end
  return 'o\0' .. pack('>I8', last > oldest and last + 1 or 0) .. concat(parts)
end

reads('samples', samples)
reads('history', history)
