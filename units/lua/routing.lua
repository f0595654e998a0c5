-- Which backend a key goes to: the same function as fleetctl/balancer/routing.py, bit for bit. Pure.

local ceil, log = math.ceil, math.log
local max = math.max
local md5 = ngx.md5
local sort = table.sort
local sub = string.sub
local tonumber = tonumber

local SCORES = 2 ^ 32

local routing = {}

function routing.hash(text)
    return tonumber(sub(md5(text), 1, 8), 16)
end

function routing.weighted(list)
    for i = 2, #list do
        if list[i].weight ~= list[1].weight then
            return true
        end
    end
    return false
end

-- The report's choice: md5(key)[:8] modulo the number of peers, in the order of the table.
function routing.home(key, list)
    return list[routing.hash(key) % #list + 1]
end

-- All peers, best first, by (weighted) rendezvous.
function routing.rank(key, list, weighted)
    local scored = {}
    for i = 1, #list do
        local peer = list[i]
        local score = routing.hash(key .. peer.suffix)
        if weighted then
            score = -log((score + 1) / SCORES) / peer.weight
        else
            score = -score
        end
        scored[i] = { score, peer }
    end
    sort(scored, function(a, b)
        if a[1] == b[1] then
            return a[2].id < b[2].id
        end
        return a[1] < b[1]
    end)
    for i = 1, #scored do
        scored[i] = scored[i][2]
    end
    return scored
end

local function home_first(key, list, ranked)
    local home = routing.home(key, list)
    local order = { home }
    for i = 1, #ranked do
        if ranked[i] ~= home then
            order[#order + 1] = ranked[i]
        end
    end
    return order
end

-- Stable, so that the rank (by request id) decides among equals.
local function by_load(ranked, load)
    local scored = {}
    for i = 1, #ranked do
        scored[i] = { load(ranked[i]) / ranked[i].weight, i, ranked[i] }
    end
    sort(scored, function(a, b)
        if a[1] == b[1] then
            return a[2] < b[2]
        end
        return a[1] < b[1]
    end)
    for i = 1, #scored do
        scored[i] = scored[i][3]
    end
    return scored
end

function routing.order(key, table, affinity, load)
    local ranked = routing.rank(key, table.list, table.weighted)
    if affinity == "md5-mod" and #ranked > 0 then
        return home_first(key, table.list, ranked)
    elseif affinity == "least_conn" then
        return by_load(ranked, load)
    end
    return ranked
end

-- Those that may take a request, and whether that is only because none of them is healthy.
function routing.candidates(order, healthy)
    local up, well = {}, {}
    for i = 1, #order do
        local peer = order[i]
        if peer.state == "up" then
            up[#up + 1] = peer
            if healthy(peer) then
                well[#well + 1] = peer
            end
        end
    end
    if #well > 0 then
        return well, false
    end
    return up, #up > 0
end

local function least_bound(candidates, load, bound)
    local total, weights = 1, 0
    for i = 1, #candidates do
        total = total + load(candidates[i])
        weights = weights + candidates[i].weight
    end
    for i = 1, #candidates do
        local peer = candidates[i]
        local share = ceil(bound.factor * total * peer.weight / weights)
        if load(peer) < max(bound.floor, share) then
            return peer
        end
    end
    return candidates[1]
end

-- The peer for this key and why; nil when none may take a request.
function routing.choose(order, healthy, load, bound)
    local candidates, panic = routing.candidates(order, healthy)
    local first = candidates[1]
    if not first then
        return nil
    end
    local chosen = first
    if load(first) >= bound.floor then
        chosen = least_bound(candidates, load, bound)
    end
    if panic then
        return chosen, "panic"
    elseif chosen ~= first then
        return chosen, "spill"
    end
    return chosen, chosen == order[1] and "primary" or "failover"
end

return routing
