-- Before a request goes out: preflight, key, limits, choice of the peer.

local choice = require "choice"
local inflight = require "inflight"
local keys = require "keys"
local limits = require "limits"
local metrics = require "metrics"
local peers = require "peers"
local secret = require "secret"
local settings = require "settings"

local LEAST_CONN = settings.affinity == "least_conn"

local access = {}

local function refuse(var, wait)
    metrics.refused()
    var.route_retry_after = wait
    return ngx.exit(ngx.HTTP_TOO_MANY_REQUESTS)
end

function access.run()
    local method = ngx.req.get_method()
    if method == "OPTIONS" then
        return ngx.exit(ngx.HTTP_NO_CONTENT)
    end
    local var, ctx = ngx.var, ngx.ctx
    local key, source = keys.of(var)
    local sid = keys.sid(key)
    var.route_sid, var.route_source = sid, source
    local wait = limits.refuse(sid, peers.current().list)
    if wait then
        return refuse(var, wait)
    end
    -- The whole body first, however slowly it comes: the choice is then as fresh as the request is.
    ngx.req.read_body()
    if LEAST_CONN then
        key = var.request_id
    end
    local peer, why = choice.first(key)
    if not peer then
        return ngx.exit(ngx.HTTP_SERVICE_UNAVAILABLE)
    end
    inflight.add(peer.id)
    ctx.key, ctx.peer, ctx.why, ctx.source = key, peer, why, source
    ctx.computes = method == "POST"
    var.route_held, var.route_id = "1", peer.id
    var.route_addr, var.route_why = peer.address, why
    if secret.rotating() and secret.is_ours(keys.bearer(var.http_authorization or "")) then
        ctx.ours = true
        var.route_auth = "Bearer " .. secret.of(peer)
    end
end

return access
