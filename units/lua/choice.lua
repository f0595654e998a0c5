-- The peer for a key, from the table, the health and the load of this moment.

local health = require "health"
local inflight = require "inflight"
local peers = require "peers"
local routing = require "routing"
local settings = require "settings"

local AFFINITY = settings.affinity
local BOUND = { floor = settings.load_floor, factor = settings.load_factor }
local REMEMBERED = 4096           -- orders each worker keeps; building one costs a hash per peer

local choice = {}

local orders, kept, orders_of = {}, 0, nil

local function remembered(key, table)
    if orders_of ~= table or kept >= REMEMBERED then
        orders, kept, orders_of = {}, 0, table
    end
    local order = orders[key]
    if not order then
        order = routing.order(key, table, AFFINITY, inflight.of)
        orders[key] = order
        kept = kept + 1
    end
    return order
end

-- The order in which peers are tried for a key.
function choice.order(key)
    local table = peers.current()
    if AFFINITY == "least_conn" then
        return routing.order(key, table, AFFINITY, inflight.of)
    end
    return remembered(key, table)
end

local function free(peer)
    return peer.state == "up" and health.usable(peer) and inflight.of(peer) < BOUND.floor
end

-- Nearly every request ends here: its home is well and has room, so nothing else needs to be known.
local function at_home(key)
    local list = peers.current().list
    health.sync(list)
    local home
    if AFFINITY == "md5-mod" and #list > 0 then
        home = routing.home(key, list)
    elseif AFFINITY == "rendezvous" then
        home = choice.order(key)[1]
    end
    if home and free(home) then
        return home
    end
end

-- The peer and why; nil when none may take a request.
function choice.first(key)
    local home = at_home(key)
    if home then
        return home, "primary"
    end
    return routing.choose(choice.order(key), health.usable, inflight.of, BOUND)
end

-- The next peer after a failed one, nil when there is no other.
function choice.next(key, failed)
    local other
    health.sync(peers.current().list)
    for _, peer in ipairs(choice.order(key)) do
        if peer.state == "up" and peer.id ~= failed.id then
            if health.usable(peer) then
                return peer
            end
            other = other or peer
        end
    end
    return other
end

return choice
