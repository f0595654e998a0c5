-- What the balancer knows, for those who may ask: /health for all, the rest on the loopback listener.

local choice = require "choice"
local health = require "health"
local inflight = require "inflight"
local json = require "json"
local keys = require "keys"
local metrics = require "metrics"
local peers = require "peers"
local secret = require "secret"
local settings = require "settings"

local LOADED = ngx.now()    -- seconds since 1970: every reload loads this file again, in the master

-- The release with which this machine became the balancer; nil when nobody noted it.
local SINCE
do
    local file = io.open(settings.since, "rb")
    if file then
        SINCE = file:read("*l")
        file:close()
    end
end

local state = {}

local function answer(object, status)
    ngx.status = status or ngx.HTTP_OK
    ngx.header["Content-Type"] = "application/json"
    ngx.print(json.encode(object), "\n")
    return ngx.exit(ngx.HTTP_OK)
end

local function machines(list)
    local names, seen = {}, {}
    for _, peer in ipairs(list) do
        local name = peer.id:match("^(.-)/") or peer.id
        if not seen[name] then
            seen[name] = true
            names[#names + 1] = name
        end
    end
    return names
end

-- 200 ok: every backend takes requests; 200 degraded: some do; 503: none does.
function state.health()
    local list, up = peers.current().list, 0
    health.sync(list)
    for _, peer in ipairs(list) do
        if peer.state == "up" and health.usable(peer) then
            up = up + 1
        end
    end
    local verdict = up == 0 and "down" or up < #list and "degraded" or "ok"
    -- One that sends to nobody yet keeps no other balancer from starting.
    local since = #list > 0 and SINCE or nil
    return answer(json.object({
        { "status", verdict },
        { "backends", #list },
        { "up", up },
        { "machines", json.list(machines(list)) },
        { "since", since },
    }), up == 0 and ngx.HTTP_SERVICE_UNAVAILABLE or ngx.HTTP_OK)
end

local function row(peer)
    local pairs = {
        { "id", peer.id },
        { "address", peer.address },
        { "weight", peer.weight },
        { "state", peer.state },
        { "health", health.of(peer) },
        { "inflight", inflight.of(peer) },
    }
    if secret.rotating() then
        pairs[#pairs + 1] = { "key", secret.known(peer) }
    end
    return json.object(pairs)
end

-- `version` is the peers file that every serving worker holds, "" while they differ; `loaded` is when the
-- configuration in force was read; `key` and `old_key` are sids, never the keys.
function state.document()
    local rows = {}
    for i, peer in ipairs(peers.current().list) do
        rows[i] = row(peer)
    end
    local key, old_key = secret.in_force()
    return answer(json.object({
        { "version", inflight.agreed() },
        { "config", settings.config },
        { "loaded", LOADED },
        { "affinity", settings.affinity },
        { "key", key },
        { "old_key", old_key },
        { "peers", json.list(rows) },
    }))
end

function state.inflight()
    local counts = {}
    for i, peer in ipairs(peers.current().list) do
        counts[i] = { peer.id, inflight.of(peer) }
    end
    return answer(json.object(counts))
end

-- For Prometheus, on the loopback listener.
function state.metrics()
    local held, well, up = {}, {}, {}
    health.sync(peers.current().list)
    for i, peer in ipairs(peers.current().list) do
        local label = '{backend="' .. peer.id .. '"}'
        held[i] = { label, inflight.of(peer) }
        up[i] = { label, peer.state == "up" and health.usable(peer) and 1 or 0 }
        well[i] = { '{backend="' .. peer.id .. '",state="' .. peer.state .. '",health="' .. health.of(peer) .. '"}', 1 }
    end
    ngx.header["Content-Type"] = "text/plain; version=0.0.4"
    ngx.print(metrics.page({
        { "fleet_inflight", "Requests in flight.", held },
        { "fleet_backend_up", "1 while the backend takes requests.", up },
        { "fleet_backend_state", "What fleetctl wants of the backend, and what the balancer sees.", well },
    }))
    return ngx.exit(ngx.HTTP_OK)
end

local function routed(key)
    local peer, why = choice.first(key)
    if not peer then
        return json.object({ { "sid", keys.sid(key) }, { "id", nil }, { "address", nil }, { "why", nil } })
    end
    return json.object({
        { "sid", keys.sid(key) },
        { "id", peer.id },
        { "address", peer.address },
        { "why", why },
    })
end

-- Where a request with these headers would go; POST: keys, one a line, percent-encoded, answered as a list.
function state.route()
    if ngx.req.get_method() ~= "POST" then
        return answer(routed((keys.of(ngx.var))))
    end
    ngx.req.read_body()
    local rows = {}
    for line in (ngx.req.get_body_data() or ""):gmatch("([^\n]*)\n") do
        rows[#rows + 1] = routed(ngx.unescape_uri(line))
    end
    return answer(json.list(rows))
end

return state
