-- The API key, for the probe that asks for a token. Read once, in the master, which is root; the file stays 0600.

local settings = require "settings"

local secret = {}

local key

function secret.read()
    local file = io.open(settings.api_key, "rb")
    if file then
        key = file:read("*l")
        file:close()
    end
    if not key or not key:match("^[%w%p]+$") then
        key = nil
        ngx.log(ngx.WARN, "no key in ", settings.api_key, ": no backend is asked for a token")
    end
end

function secret.get()
    return key
end

return secret
