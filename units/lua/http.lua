-- One small HTTP request over a new connection, for probes.

local CONNECT_MS = 1000

local http = {}

-- text: the whole request; seconds: for the answer to begin. want_body: read it to the end.
-- The status and the body, or nil and one of connect, timeout, closed.
function http.ask(peer, text, seconds, want_body)
    local sock = ngx.socket.tcp()
    sock:settimeouts(math.min(CONNECT_MS, seconds * 1000), seconds * 1000, seconds * 1000)
    if not sock:connect(peer.host, peer.port) then
        return nil, "connect"
    end
    if not sock:send(text) then
        sock:close()
        return nil, "closed"
    end
    local line, reason = sock:receive("*l")
    local status = line and tonumber(line:match("^HTTP/%d%.%d (%d%d%d)"))
    local body = status and want_body and sock:receive("*a") or ""
    sock:close()
    if not status then
        return nil, reason == "timeout" and "timeout" or "closed"
    end
    return status, body
end

function http.get(peer, path, key)
    local authorization = key and "Authorization: Bearer " .. key .. "\r\n" or ""
    return "GET " .. path .. " HTTP/1.0\r\nHost: " .. peer.address .. "\r\n" .. authorization
        .. "X-Fleetctl-Probe: 1\r\n\r\n"
end

function http.post(peer, path, key, body)
    return table.concat({
        "POST " .. path .. " HTTP/1.0",
        "Host: " .. peer.address,
        "Authorization: Bearer " .. key,
        "Content-Type: application/json",
        "Content-Length: " .. #body,
        "X-Fleetctl-Probe: 1",
        "",
        body,
    }, "\r\n")
end

return http
