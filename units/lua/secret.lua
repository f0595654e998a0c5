-- The API key, for the probe that asks for a token. Read once, in the master, which is root; files stay 0600.
--
-- While the fleet changes to another key there are two: users may send either, and each peer is sent the one that
-- its engine was started with. The prober finds out which: a dead engine comes back with the new one.

local md5 = ngx.md5
local settings = require "settings"

local dict = ngx.shared.fleetctl_state

local secret = {}

local key, old     -- the key, and the one that it replaces
local OLD, NEW     -- what the dictionary says of a peer; of this very change, not of an earlier one

local function read(path)
    local file = io.open(path, "rb")
    local found = file and file:read("*l")
    if file then
        file:close()
    end
    return found and found:match("^[%w%p]+$")
end

-- In the master. `list`: the peers there are; those that come later have engines of the new key.
function secret.read(list)
    key, old = read(settings.api_key), read(settings.api_key .. ".old")
    if not key then
        ngx.log(ngx.WARN, "no key in ", settings.api_key, ": no backend is asked for a token")
    end
    if not key or old == key then
        old = nil
    end
    if old then
        local change = md5(old .. key)
        OLD, NEW = "old " .. change, "new " .. change
        for i = 1, #list do
            local known = dict:get("k:" .. list[i].id)
            if known ~= OLD and known ~= NEW then
                dict:set("k:" .. list[i].id, OLD)
            end
        end
    end
end

-- Whether there are two keys.
function secret.rotating()
    return old ~= nil
end

-- Whether a user's key is one of the two.
function secret.is_ours(token)
    return token == key or token == old
end

-- What this peer's engine is to be sent; nil when there is no key.
function secret.of(peer)
    return old and dict:get("k:" .. peer.id) == OLD and old or key
end

-- The key that engines are started with now; nil when there is none.
function secret.get()
    return key
end

-- old or new; nil while there is one key.
function secret.known(peer)
    return old and (dict:get("k:" .. peer.id) == OLD and "old" or "new")
end

-- The peer's engine took the new key, or refused it.
function secret.learned(peer, took)
    dict:set("k:" .. peer.id, took and NEW or OLD)
end

return secret
