-- The affinity key of a request: session id, bearer token or client address, in the configured order.

local md5 = ngx.md5
local settings = require "settings"
local sub = string.sub

local keys = {}

local variables = {}
for i, header in ipairs(settings.session_headers) do
    variables[i] = "http_" .. header:lower():gsub("-", "_")
end

-- The token of an Authorization header, scheme in any case; empty when there is none.
function keys.bearer(authorization)
    return authorization:match("^%s*[Bb][Ee][Aa][Rr][Ee][Rr]%s+(.+)$") or ""
end

local sources = {}

function sources.session(var)
    for i = 1, #variables do
        local value = var[variables[i]]
        if value and value ~= "" then
            return value
        end
    end
    return ""
end

function sources.bearer(var)
    return keys.bearer(var.http_authorization or "")
end

function sources.client(var)
    return var.remote_addr or ""
end

-- The key and where it came from.
function keys.of(var)
    for i = 1, #settings.key_order do
        local source = settings.key_order[i]
        local key = sources[source](var)
        if key ~= "" then
            return key, source
        end
    end
    return sources.client(var), "client"
end

-- The only form in which a key is ever logged.
function keys.sid(key)
    return sub(md5(key), 1, 12)
end

return keys
