-- Requests in flight per peer, true also after a worker was killed.
--
-- Every worker owns a numbered slot and counts only there; a peer's count is the sum over the slots. A slot
-- whose process is gone is freed and its numbers with it, so nothing a dead worker held stays counted.

local SLOTS = 64
local TOTAL = "*"                 -- counts over all peers; no peer has this id
local dict = ngx.shared.fleetctl_state
local open = io.open

local inflight = {}

local all = { id = TOTAL }
local mine            -- number of this worker's slot
local live = {}       -- numbers of all taken slots, this one's too

local function key(slot, id)
    return "n:" .. slot .. ":" .. id
end

local function running(pid)
    local file = open("/proc/" .. pid .. "/stat", "rb")
    if file then
        file:close()
    end
    return file ~= nil
end

-- Forget what slot held; `ids` are the counters it ever used.
local function clear(slot)
    local names = dict:get("ids:" .. slot) or ""
    for id in names:gmatch("%S+") do
        dict:delete(key(slot, id))
    end
    dict:delete("ids:" .. slot)
    dict:delete("version:" .. slot)
end

local function claim()
    for slot = 1, SLOTS do
        if dict:add("slot:" .. slot, ngx.worker.pid()) then
            clear(slot)
            return slot
        end
    end
    ngx.log(ngx.ERR, "more than ", SLOTS, " workers: requests of this one are not counted")
end

-- Keys are built once per peer and slot: this runs for every request.
local function keys_of(peer)
    local keys = peer.keys
    if not keys or peer.keys_of ~= live then
        keys = {}
        for i = 1, #live do
            keys[i] = key(live[i], peer.id)
        end
        peer.keys, peer.keys_of = keys, live
    end
    return keys
end

local known = {}

local function remember(id)
    if not known[id] then
        known[id] = true
        local names = {}
        for name in pairs(known) do
            names[#names + 1] = name
        end
        dict:set("ids:" .. mine, table.concat(names, " "))
    end
end

local function change(id, by)
    if not mine then
        return
    end
    remember(id)
    dict:incr(key(mine, id), by, 0)
end

function inflight.add(id)
    change(id, 1)
    change(TOTAL, 1)
end

function inflight.remove(id)
    change(id, -1)
    change(TOTAL, -1)
end

-- Over all peers, also those that have left the table.
function inflight.total()
    return inflight.of(all)
end

function inflight.of(peer)
    local keys, sum = keys_of(peer), 0
    for i = 1, #keys do
        sum = sum + (dict:get(keys[i]) or 0)
    end
    return sum
end

-- Until the first tick the slots that workers starting beside this one are about to take count as taken.
local function upcoming(taken)
    local highest = taken[#taken] or 0
    for slot = highest + 1, math.min(SLOTS, highest + ngx.worker.count()) do
        taken[#taken + 1] = slot
    end
end

-- Which slots count, seen anew. One worker (`lead`) frees those of dead workers.
function inflight.refresh(lead)
    local starting = not mine
    if starting or dict:get("slot:" .. mine) ~= ngx.worker.pid() then
        mine, known = claim(), {}
    end
    local taken = {}
    for slot = 1, SLOTS do
        local holder = dict:get("slot:" .. slot)
        if lead and holder and not running(holder) then
            clear(slot)
            dict:delete("slot:" .. slot)
        elseif holder then
            taken[#taken + 1] = slot
        end
    end
    if starting then
        upcoming(taken)
    end
    if table.concat(taken, ",") ~= table.concat(live, ",") then
        live = taken
    end
end

-- Tell the others which peers file this worker holds; nil once it serves no new requests.
function inflight.publish(version)
    if not mine then
        return
    elseif version then
        dict:set("version:" .. mine, version)
    else
        dict:delete("version:" .. mine)
    end
end

-- The version that all serving workers hold, or "" while they differ.
function inflight.agreed()
    local agreed
    for i = 1, #live do
        local version = dict:get("version:" .. live[i])
        if version and agreed and version ~= agreed then
            return ""
        end
        agreed = version or agreed
    end
    return agreed or ""
end

return inflight
