-- The API key, for the probe that asks for a token. Read once, in the master, which is root; files stay 0600.
--
-- While the fleet changes to another key there are two: users may send either, and each peer is sent the one that
-- its engine was started with. The prober finds out which: a dead engine comes back with the new one.

local md5 = ngx.md5
local settings = require "settings"

local dict = ngx.shared.fleetctl_state

local secret = {}

local key, old                 -- the key, and the one that it replaces
local key_sid, old_sid         -- the only forms in which they are kept or shown

local function read(path)
    local file = io.open(path, "rb")
    local found = file and file:read("*l")
    if file then
        file:close()
    end
    return found and found:match("^[%w%p]+$")
end

local function sid(text)
    return text and md5(text):sub(1, 12)
end

-- In the master. `list`: the peers there are; those that come later have engines of the new key.
-- Shared by all workers, per peer: `key:` which key its engine took when it was last asked.
function secret.read(list)
    key, old = read(settings.api_key), read(settings.api_key .. ".old")
    if not key then
        ngx.log(ngx.WARN, "no key in ", settings.api_key, ": no backend is asked for a token")
    end
    if not key or old == key then
        old = nil
    end
    key_sid, old_sid = sid(key), sid(old)
    for i = 1, #list do
        local name = "key:" .. list[i].id
        local known = dict:get(name)
        if not old then
            dict:delete(name)
        elseif known ~= key_sid and known ~= old_sid then
            dict:set(name, old_sid)
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

local function has_old(peer)
    return old and dict:get("key:" .. peer.id) == old_sid
end

-- What this peer's engine is to be sent; nil when there is no key.
function secret.of(peer)
    return has_old(peer) and old or key
end

-- The key that engines are started with now; nil when there is none.
function secret.get()
    return key
end

-- old or new; nil while there is one key.
function secret.known(peer)
    return old and (has_old(peer) and "old" or "new")
end

-- The peer's engine took the new key, or refused it.
function secret.learned(peer, took)
    dict:set("key:" .. peer.id, took and key_sid or old_sid)
end

-- What is in force: the sids of the key and of the one that it replaces, nil where there is none.
function secret.in_force()
    return key_sid, old_sid
end

return secret
