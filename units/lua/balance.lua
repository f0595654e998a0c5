-- Hands nginx the chosen peer, and another one, once, when the first is proved not to have worked on the request.

local balancer = require "ngx.balancer"
local choice = require "choice"
local failure = require "failure"
local health = require "health"
local inflight = require "inflight"
local metrics = require "metrics"
local secret = require "secret"

local set_more_tries = balancer.set_more_tries

local balance = {}

local function use(peer)
    local ok, reason = balancer.set_current_peer(peer.host, peer.port)
    if not ok then
        ngx.log(ngx.ERR, "peer ", peer.id, " cannot be used: ", reason)
        return ngx.exit(ngx.ERROR)
    end
end

-- Whether the try that just failed went over a kept-alive connection. nginx grants such a failure one try more
-- than others (ngx_http_upstream_next), which shows here as a limit that proxy_next_upstream_tries 3 reaches.
local function was_reused()
    local _, reduced = set_more_tries(1)
    set_more_tries(0)
    return reduced ~= nil
end

-- nginx calls again for a try that failed; its numbers are the second to last of each list.
local function what_failed(var, ctx)
    local _, status = balancer.get_last_failure()
    local connected = failure.nth(var.upstream_connect_time, ctx.tries)
    local answered = failure.nth(var.upstream_header_time, ctx.tries)
    local seconds = ngx.now() - ctx.started
    return failure.kind(status, connected, answered, was_reused(), seconds), status
end

local function give_up(var, status)
    var.route_status = status
    return ngx.exit(status)
end

local function again(var, ctx)
    local failed = ctx.peer
    local kind, status = what_failed(var, ctx)
    health.failed(failed, kind)
    metrics.retry(failed.id, kind)
    inflight.remove(failed.id)
    var.route_held = ""
    local peer = ctx.tries == 1 and failure.may_retry(kind) and choice.next(ctx.key, failed)
    if not peer then
        return give_up(var, status)
    end
    inflight.add(peer.id)
    ctx.tries, ctx.started, ctx.peer, ctx.why = 2, ngx.now(), peer, "retry"
    var.route_held, var.route_id = "1", peer.id
    var.route_addr, var.route_why = peer.address, "retry"
    if ctx.ours then
        var.route_auth = "Bearer " .. secret.of(peer)
    end
    balancer.recreate_request()    -- X-Backend-Instance names the new one
    return use(peer)
end

function balance.run()
    local ctx = ngx.ctx
    if ctx.tries then
        return again(ngx.var, ctx)
    end
    ctx.tries, ctx.started = 1, ngx.now()
    set_more_tries(1)
    return use(ctx.peer)
end

return balance
