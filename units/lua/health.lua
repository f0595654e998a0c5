-- Which backends are alive, as seen from here: what users' requests meet (passive) and what probes find.
--
-- Shared by all workers, per peer: h suspect or down, by the prober; e ejected, runs out by itself;
-- f failures in a row; k how often ejected lately; p when it last proved that it works; t a request timed out.

local probe = require "probe"

local EJECT_AFTER = 3             -- failures in a row
local EJECT_SECONDS = 10          -- doubled each time ...
local EJECT_MAX = 120             -- ... up to this
local FORGET_SECONDS = 600        -- without an ejection, doubling starts over

local dict = ngx.shared.fleetctl_state

local health = {}

local progress = {}               -- id -> time of the last bytes this worker saw, until the next tick

-- What this worker holds of the shared state, so that a request costs one look-up there and not two a peer.
local unusable = {}               -- id -> true
local failing = {}                -- id -> true: failures are being counted, or it is ejected
local seen_changes                -- the number of changes that this is true of

function health.usable(peer)
    return not unusable[peer.id]
end

-- ok, suspect, down or ejected.
function health.of(peer)
    return dict:get("h:" .. peer.id) or dict:get("e:" .. peer.id) and "ejected" or "ok"
end

local function eject(peer, kind)
    local times = dict:incr("k:" .. peer.id, 1, 0, FORGET_SECONDS) or 1
    local seconds = math.min(EJECT_MAX, EJECT_SECONDS * 2 ^ (times - 1))
    dict:set("e:" .. peer.id, kind, seconds)
    dict:delete("f:" .. peer.id)
    dict:incr("changes", 1, 0)
    ngx.log(ngx.WARN, "peer ", peer.id, " ejected for ", seconds, " s: ", kind)
end

-- A try on this peer failed; `kind` as failure.lua names it.
function health.failed(peer, kind)
    if kind == "timeout" then
        dict:set("t:" .. peer.id, ngx.now())
    elseif kind ~= "stale" then
        local failures = dict:incr("f:" .. peer.id, 1, 0) or 0
        dict:incr("changes", 1, 0)
        if failures >= EJECT_AFTER and not dict:get("e:" .. peer.id) then
            eject(peer, kind)
        end
    end
end

-- Bytes of an answer came from this peer.
function health.progress(id)
    progress[id] = ngx.now()
end

-- This peer answered a request properly.
function health.worked(peer)
    if failing[peer.id] then
        dict:delete("f:" .. peer.id)
        dict:delete("e:" .. peer.id)
        dict:incr("changes", 1, 0)
    end
end

local usable_now

-- How many peers take requests, as of the last tick; those up when none is healthy.
function health.count(list)
    if usable_now then
        return usable_now
    end
    local up, well = 0, 0
    for i = 1, #list do
        if list[i].state == "up" then
            up = up + 1
            if health.usable(list[i]) then
                well = well + 1
            end
        end
    end
    usable_now = well > 0 and well or up
    return usable_now
end

local function look(list)
    local now_unusable, now_failing = {}, {}
    for i = 1, #list do
        local id = list[i].id
        local ejected = dict:get("e:" .. id)
        now_unusable[id] = (ejected or dict:get("h:" .. id)) and true
        now_failing[id] = (ejected or dict:get("f:" .. id)) and true
    end
    unusable, failing, usable_now = now_unusable, now_failing, nil
end

-- Before a choice: see what has changed since the last one, in whichever worker.
function health.sync(list)
    local changes = dict:get("changes")
    if changes ~= seen_changes then
        seen_changes = changes
        look(list)
    end
end

-- In every worker, every half second; one of them (`lead`) probes.
function health.refresh(lead, list)
    for id, at in pairs(progress) do
        dict:set("p:" .. id, at)
        progress[id] = nil
    end
    look(list)      -- also what only runs out, as an ejection does
    if lead then
        probe.tick(list)
    else
        probe.forget()
    end
end

return health
