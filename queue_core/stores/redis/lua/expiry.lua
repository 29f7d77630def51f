-- Expiry: due tasks become ready (or dead), a bounded number at a time, inside the next verb.

-- Return the position of the first due task beyond `limit`; `delayed` and `leased` are members and scores in turn, in
-- order.
local function horizon_of(delayed, leased, limit)
  local d, l = 1, 1
  for _ = 1, limit do
    local eta, other = tonumber(delayed[d + 1]), tonumber(leased[l + 1])
    if not other or (eta and is_before(eta, delayed[d], other, leased[l])) then d = d + 2 else l = l + 2 end
  end
  local eta, other = tonumber(delayed[d + 1]), tonumber(leased[l + 1])
  if not other or (eta and is_before(eta, delayed[d], other, leased[l])) then
    return { eta = eta, member = delayed[d] }, d - 1, l - 1
  end
  return { eta = other, member = leased[l] }, d - 1, l - 1
end

local function settle_delayed(queue, due, size)
  local members = {}
  for index = 1, size, 2 do members[#members + 1] = due[index] end
  local bodies = read_many('HMGET', queue.key, members)
  for index, member in ipairs(members) do
    local tag, _, _, priority = heads_of(bodies[index])
    take_delayed(queue, tag, member)
    put(queue, READY, tag, member, due[2 * index], priority)
  end
end

local function settle_leased(queue, due, size, expired)
  local members = {}
  for index = 1, size, 2 do members[#members + 1] = due[index] end
  local held = read_many('HMGET', queue.key, held_fields(members))
  for index, member in ipairs(members) do
    expired[index] = expire(queue, member, parse_held(held[index]), due[2 * index])
  end
end

-- Settle the first `limit` due tasks by eta, and update the lanes of their tags and those that are due. Later reads of
-- the same call find them settled. Returns the leases that had expired; eta and member of the first due task that is
-- left, if one is: those before it may be leased; and whether lanes are left that are due.
function settle(queue, limit)
  local keys, untagged, tagged = queue.keys, counts_for(queue, UNTAGGED), counts_for(queue, TAGGED)
  local delayed, leased, most = NOTHING, NOTHING, limit == SETTLED_PER_CALL and ONE_MORE or text_of(limit + 1)
  if untagged[DELAYED] + tagged[DELAYED] > 0 then
    delayed = call('ZRANGEBYSCORE', keys.delayed_all, '-inf', queue.at, 'WITHSCORES', 'LIMIT', '0', most)
  end
  if untagged[LEASED] + tagged[LEASED] > 0 then
    leased = call('ZRANGEBYSCORE', keys.leased, '-inf', queue.at, 'WITHSCORES', 'LIMIT', '0', most)
  end
  local due_delayed, due_leased = #delayed, #leased
  if due_delayed + due_leased == 0 then return NOTHING, nil, queue.touched and lanes.update_due(queue, limit) end
  local expired = {}
  local horizon
  if due_delayed + due_leased > 2 * limit then
    horizon, due_delayed, due_leased = horizon_of(delayed, leased, limit)
  end
  if due_delayed > 0 then settle_delayed(queue, delayed, due_delayed) end
  if due_leased > 0 then settle_leased(queue, leased, due_leased, expired) end
  flush(queue)
  return expired, horizon, queue.touched and lanes.update_due(queue, limit)
end

-- Settle a task that the end of its last lease deletes, so that its name counts as a deleted one's; return whether.
function settle_used_up(queue, member)
  if not queue.spec.deletes_exhausted then return false end
  local eta = call('ZSCORE', queue.keys.leased, member)
  if not eta or tonumber(eta) > queue.now then return false end
  local held = parse_held(call('HGET', queue.key, AS_HELD .. member))
  if not is_exhausted(queue, held) then return false end
  expire(queue, member, held, eta)
  flush(queue)
  return true
end
