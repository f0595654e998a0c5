-- What runs before the first request: in the master once a configuration is loaded, then in every worker.

local health = require "health"
local inflight = require "inflight"
local lease = require "lease"
local metrics = require "metrics"
local peers = require "peers"
local secret = require "secret"

-- Loaded here, in the master, so that no worker ever mixes modules of two configurations.
require "access"
require "balance"
require "errors"
require "finish"
require "state"

local PERIOD = 0.5    -- seconds; a new peers file is in force within one of them

local start = {}

function start.master()
    peers.start()
    secret.read(peers.current().list)
end

local function tick(premature)
    if premature then
        inflight.publish(nil)
        metrics.flush()
        return
    end
    local lead = lease.held()
    inflight.refresh(lead)
    peers.refresh()
    health.refresh(lead, peers.current().list)
    metrics.flush()
end

function start.worker()
    inflight.refresh(false)
    peers.refresh()
    health.refresh(false, peers.current().list)
    local ok, reason = ngx.timer.every(PERIOD, tick)
    if not ok then
        ngx.log(ngx.ERR, "no timer, the peers file will not be read again: ", reason)
    end
end

return start
