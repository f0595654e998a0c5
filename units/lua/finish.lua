-- While an answer passes, and after it: what the request held is given back, and what it showed is kept.

local failure = require "failure"
local health = require "health"
local inflight = require "inflight"
local metrics = require "metrics"
local peers = require "peers"

local finish = {}

-- For every piece of an answer: must stay cheap. Tokens are proof of work; the last piece proves it whole.
function finish.chunk()
    local ctx = ngx.ctx
    if ctx.computes and ctx.peer and ngx.status == ngx.HTTP_OK then
        health.progress(ctx.peer.id)
    end
    if ngx.arg[2] then
        ctx.whole = true
    end
end

-- How the answer ended: done, cut (by the backend), client (who went away); nil for answers without a body.
local function ending(var, ctx)
    if ctx.whole then
        return "done"
    elseif ngx.status < 200 or ngx.status == 204 or ngx.status == 304 or var.request_method == "HEAD" then
        return nil
    end
    return var.request_completion == "OK" and "cut" or "client"
end

local function answered(var, ctx, peer, id)
    local how = ending(var, ctx)
    var.route_end = how or ""
    if how == "cut" then
        metrics.cut(id)
    elseif peer and ngx.status < 500 then
        health.worked(peer)
    end
end

local function last(list)
    return list and list:match("([^,:%s]+)%s*$")
end

-- The last try of a request that got no answer; those before it were judged when the retry was asked for.
local function failed(var, peer, id)
    local status, connected = tonumber(last(var.upstream_status)), tonumber(last(var.upstream_connect_time))
    if status ~= 502 and status ~= 503 and status ~= 504 then
        return
    end
    local kind = failure.kind(status, connected, nil, false, 0)
    metrics.retry(id, kind)
    if peer then
        health.failed(peer, kind)
    end
end

function finish.run()
    local var = ngx.var
    local source = var.route_source
    if not source or source == "" then
        return
    end
    local id, held = var.route_id, var.route_peer
    metrics.request(id, ngx.status, var.route_why, source)
    if held ~= "" then
        inflight.remove(held)
        local peer = peers.current().by_id[held]
        local first_byte = tonumber(last(var.upstream_header_time))
        if first_byte then
            metrics.first_byte(first_byte)
            if ngx.status == 502 or ngx.status == 503 then
                metrics.retry(id, "refused")
                if peer then
                    health.failed(peer, "refused")
                end
            end
            answered(var, ngx.ctx, peer, id)
        else
            failed(var, peer, id)
        end
    end
    if ngx.worker.exiting() then
        metrics.flush()
    end
end

return finish
