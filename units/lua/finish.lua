-- While an answer passes, and after it: what the request held is given back, and what it showed is kept.

local failure = require "failure"
local health = require "health"
local inflight = require "inflight"
local metrics = require "metrics"
local peers = require "peers"

local now = ngx.now

local finish = {}

-- For every piece of an answer: must stay cheap. Tokens are proof of work; the last piece proves it whole.
function finish.chunk()
    local ctx = ngx.ctx
    local peer = ctx.peer
    if not peer then
        return
    elseif not ctx.first_byte then
        ctx.first_byte = now()
        ctx.proves = ctx.computes and ngx.status == ngx.HTTP_OK
    end
    if ctx.proves then
        health.progress(peer.id)
    end
    if ngx.arg[2] then
        ctx.whole = true
    end
end

-- How an answer that is not whole ended: cut (by the backend), client (who went away), or "" where it has no body.
local function ending(status, var)
    if status < 200 or status == 204 or status == 304 or var.request_method == "HEAD" then
        return ""
    end
    return var.request_completion == "OK" and "cut" or "client"
end

-- The request went through to an answer of its backend, and nothing was redirected since: all is in the context.
local function answered(ctx, status)
    local peer, var = ctx.peer, ngx.var
    local how = ctx.whole and "done" or ending(status, var)
    var.route_end = how
    inflight.remove(peer.id)
    metrics.request(peer.id, status, ctx.why, ctx.source)
    metrics.first_byte(ctx.first_byte - ngx.req.start_time())
    if how == "cut" then
        metrics.cut(peer.id)
    elseif status == 502 or status == 503 then
        metrics.retry(peer.id, "refused")
        health.failed(peer, "refused")
    elseif status < 500 then
        health.worked(peer)
    end
end

local function last(list)
    return list and list:match("([^,:%s]+)%s*$")
end

-- The last try of a request that got no answer; those before it were judged when the retry was asked for.
local function failed(var, id)
    local status, connected = tonumber(last(var.upstream_status)), tonumber(last(var.upstream_connect_time))
    local peer = peers.current().by_id[id]
    if status == 502 or status == 503 or status == 504 then
        local kind = failure.kind(status, connected, nil, false, 0)
        metrics.retry(id, kind)
        if peer then
            health.failed(peer, kind)
        end
    end
end

-- An answer of our own: error_page has emptied the context, only variables are left.
local function refused(var, status)
    local source = var.route_source
    if not source or source == "" then
        return
    end
    local id = var.route_id
    metrics.request(id, status, var.route_why, source)
    if var.route_held == "1" then
        inflight.remove(id)
        failed(var, id)
    end
end

function finish.run()
    local ctx, status = ngx.ctx, ngx.status
    if ctx.first_byte then
        answered(ctx, status)
    else
        refused(ngx.var, status)
    end
    if ngx.worker.exiting() then
        metrics.flush()
    end
end

return finish
