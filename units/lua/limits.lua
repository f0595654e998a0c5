-- Refuses early what would only wait: too many requests of one key, or more than the whole fleet can hold.

local health = require "health"
local inflight = require "inflight"
local settings = require "settings"

local RATE = settings.requests_per_second
local CAP = settings.queue_factor * settings.max_num_seqs

local dict = ngx.shared.fleetctl_limits

local limits = {}

-- Seconds until this key may ask again, nil when it may now (GCRA: the time at which its debt is paid).
local function debt(sid)
    local now = ngx.now()
    local paid = math.max(dict:get(sid) or now, now)
    local ahead = paid - now - settings.burst / RATE
    if ahead > -1 / RATE + 1e-6 then
        return math.ceil(math.max(ahead, 1))
    end
    dict:set(sid, paid + 1 / RATE, settings.burst / RATE + 1)
    return nil
end

-- Seconds after which to try again, when this request must not pass.
function limits.refuse(sid, list)
    if RATE then
        local wait = debt(sid)
        if wait then
            return wait
        end
    end
    if CAP > 0 and inflight.total() >= CAP * math.max(1, health.count(list)) then
        return 1
    end
end

return limits
