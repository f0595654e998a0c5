-- The table of backends: read from the peers file, kept when a new file is not whole.

local inflight = require "inflight"
local routing = require "routing"
local settings = require "settings"

local LIMIT = 1024
local ENOENT = 2
local states = { up = true, drain = true, held = true, off = true }

local peers = {}

local function line_of(line, index)
    local id, host, port, weight, state = line:match("^([%w._/-]+) (%S+):(%d+) (%d+) (%a+)$")
    if not id or not states[state] then
        return nil
    end
    return {
        id = id,
        host = host,
        port = tonumber(port),
        address = host .. ":" .. port,
        weight = tonumber(weight),
        state = state,
        index = index,
        suffix = "|" .. id,
    }
end

-- The table of a whole file, or nil and the reason.
function peers.parse(text)
    local version, rest = text:match("^fleetctl%-peers 1 (%x+)\n(.*)$")
    if not version then
        return nil, "no header"
    end
    local body, count = rest:match("^(.*)end (%d+)\n$")
    if not body or ngx.md5(body) ~= version then
        return nil, "its content does not match its header"
    end
    local list, by_id = {}, {}
    for line in body:gmatch("([^\n]*)\n") do
        local peer = line_of(line, #list + 1)
        if not peer or by_id[peer.id] then
            return nil, "malformed line " .. #list + 1
        end
        list[#list + 1] = peer
        by_id[peer.id] = peer
    end
    if #list ~= tonumber(count) or #list > LIMIT then
        return nil, "wrong number of lines"
    end
    return { version = version, list = list, by_id = by_id, weighted = routing.weighted(list) }
end

local current = { version = "", list = {}, by_id = {}, weighted = false }
local seen

-- The table in force; never changes once handed out.
function peers.current()
    return current
end

local function accept(text)
    local fresh, reason = peers.parse(text)
    if not fresh then
        return nil, reason
    end
    current = fresh
    return true
end

-- A balancer starts before its first backend joins: then there is no file yet, and nothing is wrong.
local function missing(reason, number)
    if number == ENOENT and not ngx.shared.fleetctl_state:get("peers") then
        ngx.log(ngx.WARN, "no peers file yet, requests are answered 503 until a backend joins: ", reason)
    else
        ngx.log(ngx.ERR, "peers file unreadable, the last table stays: ", reason)
    end
end

-- Read the file if it changed; true when this worker then holds what the file says.
function peers.load()
    local file, reason, number = io.open(settings.peers, "rb")
    if not file then
        if seen ~= reason then
            seen = reason
            missing(reason, number)
        end
        return false
    end
    local text = file:read("*a") or ""
    file:close()
    if text == seen then
        return false
    end
    seen = text
    local ok
    ok, reason = accept(text)
    if not ok then
        ngx.log(ngx.ERR, "peers file refused, the last table stays: ", reason)
        return false
    end
    ngx.shared.fleetctl_state:set("peers", text)
    return true
end

-- At start: the file, else what the workers before a reload held, else nothing (503 until a file comes).
function peers.start()
    if not peers.load() then
        local kept = ngx.shared.fleetctl_state:get("peers")
        if kept then
            accept(kept)
        end
    end
end

-- In every worker, every half second.
function peers.refresh()
    peers.load()
    inflight.publish(current.version)
end

return peers
