-- Active probes, run by the one worker that holds the lease.
--
-- Two questions, kept apart. Does its server answer (/health)? A peer that misses fast probes is suspect unless
-- tokens flow, and down only after three slow ones: busy is not dead. Does its engine work? /health says 200
-- while an engine hangs (vllm#36451), so where no request has proved it lately, one token is asked for.

local http = require "http"
local inflight = require "inflight"
local json = require "json"
local secret = require "secret"
local settings = require "settings"

local FAST_EVERY = 1              -- seconds between fast probes
local FAST_SECONDS = 1.2          -- limit of a fast probe
local SLOW_SECONDS = 10           -- limit of a slow one, and of the token probe
local MISSES = 2                  -- fast probes in a row: suspect
local FALL = 3                    -- refusals or slow probes in a row: down
local RISE = 2                    -- answers in a row: up again
local FLOWING = 2                 -- seconds; bytes this fresh are proof that it works
local STUCK = 30                  -- seconds without proof, with requests in flight
local IDLE = 300                  -- seconds without proof, with none

local dict = ngx.shared.fleetctl_state

local probe = {}

local records = {}                -- id -> what this worker knows while it has the lease

local function record_of(peer)
    local record = records[peer.id]
    if not record or record.address ~= peer.address then
        record = {
            address = peer.address,
            server = dict:get("server:" .. peer.id) or "ok",
            engine = dict:get("engine:" .. peer.id) or "ok",
            due = 0, misses = 0, refusals = 0, slow = 0, good = 0, failed = 0,
            since = ngx.now(),
        }
        records[peer.id] = record
    end
    return record
end

local rank = { ok = 0, suspect = 1, down = 2 }

-- Record what is now known of its server or engine; the worse of the two is the peer's health.
local function become(peer, record, what, verdict, why)
    if record[what] == verdict then
        return
    end
    record[what] = verdict
    dict:set(what .. ":" .. peer.id, verdict)
    local worse = rank[record.server] > rank[record.engine] and record.server or record.engine
    if worse == "ok" then
        dict:delete("h:" .. peer.id)
    else
        dict:set("h:" .. peer.id, worse)
    end
    dict:incr("changes", 1, 0)
    ngx.log(ngx.WARN, "peer ", peer.id, ": its ", what, " is ", verdict, ", ", why)
end

local function last_proof(peer)
    return dict:get("p:" .. peer.id) or 0
end

-- While the key changes: which of the two its engine was started with.
local function ask_key(peer)
    local status = http.ask(peer, http.get(peer, "/v1/models", secret.get()), FAST_SECONDS)
    if status == 200 or status == 401 then
        secret.learned(peer, status == 200)
    end
end

local function server_ok(peer, record)
    if secret.rotating() then
        ask_key(peer)
    end
    record.misses, record.refusals, record.slow = 0, 0, 0
    record.good = record.good + 1
    if record.server == "suspect" or record.good >= RISE then
        become(peer, record, "server", "ok", "/health answers")
        if dict:get("e:" .. peer.id) == "connect" then
            dict:delete("e:" .. peer.id)
            dict:incr("changes", 1, 0)
        end
    end
end

local function server_refused(peer, record, why)
    record.good, record.misses, record.patient = 0, 0, false
    record.refusals = record.refusals + 1
    if record.refusals >= FALL then
        become(peer, record, "server", "down", why)
    end
end

-- A fast probe was missed once too often: give it ten seconds at a time, and believe in tokens.
local function slow_probes(peer, record)
    while record.slow < FALL do
        local started = ngx.now()
        local status, reason = http.ask(peer, http.get(peer, "/health"), SLOW_SECONDS)
        if status == 200 then
            record.patient = ngx.now() - started > FAST_SECONDS
            return server_ok(peer, record)
        elseif status or reason == "connect" then
            return server_refused(peer, record, status and "/health answers " .. status or "nobody listens")
        elseif last_proof(peer) >= started then
            record.slow, record.misses = 0, 0
            return become(peer, record, "server", "ok", "tokens flow")
        end
        record.slow = record.slow + 1
        become(peer, record, "server", "suspect", "/health did not answer in " .. SLOW_SECONDS .. " s")
        ngx.update_time()
    end
    record.patient = false
    become(peer, record, "server", "down", "/health has not answered for " .. FALL * SLOW_SECONDS .. " s")
end

local function ask_server(peer, record)
    if record.patient then
        return slow_probes(peer, record)
    end
    local status, reason = http.ask(peer, http.get(peer, "/health"), FAST_SECONDS)
    if status == 200 then
        return server_ok(peer, record)
    elseif status or reason ~= "timeout" then
        return server_refused(peer, record, status and "/health answers " .. status or "nobody listens")
    end
    record.good = 0
    record.misses = record.misses + 1
    if record.server == "down" then
        return
    elseif record.misses < MISSES then
        return ask_server(peer, record)
    elseif ngx.now() - last_proof(peer) > FLOWING then
        become(peer, record, "server", "suspect", "/health is slow and no tokens flow")
        record.slow = 0
        slow_probes(peer, record)
    end
end

-- Tokens it has computed by its own count, nil when it does not say.
local function tokens(peer)
    local status, body = http.ask(peer, http.get(peer, "/metrics"), FAST_SECONDS, true)
    if status ~= 200 then
        return nil
    end
    local sum
    for name, value in ("\n" .. body):gmatch("\nvllm:(%w+)_tokens_total{[^\n]*} (%S+)") do
        if name == "prompt" or name == "generation" then
            sum = (sum or 0) + (tonumber(value) or 0)
        end
    end
    return sum
end

local function engine_ok(peer, record, why)
    record.failed = 0
    dict:set("p:" .. peer.id, ngx.now())
    dict:delete("t:" .. peer.id)
    become(peer, record, "engine", "ok", why)
end

local function ask_engine(peer, record)
    local body = '{"model":' .. json.encode(settings.model) .. ',"prompt":"1","max_tokens":1,"temperature":0}'
    local before, started = tokens(peer), ngx.now()
    local text = http.post(peer, "/v1/completions", secret.of(peer), body)
    local status, reason = http.ask(peer, text, SLOW_SECONDS)
    ngx.update_time()
    if status == 200 then
        return engine_ok(peer, record, "it computed a token")
    elseif status and status < 500 then
        ngx.log(ngx.WARN, "peer ", peer.id, " answers the token probe with ", status)
        return engine_ok(peer, record, "it answers " .. status)
    elseif last_proof(peer) >= started then
        return engine_ok(peer, record, "tokens flow")
    end
    local after = before and tokens(peer)
    if after and after > before then
        return engine_ok(peer, record, "it counts tokens")
    end
    record.failed = record.failed + 1
    local why = status and "a completion answers " .. status or "a completion ends in " .. reason
    become(peer, record, "engine", record.failed >= FALL and "down" or "suspect", why)
end

local function needs_token(peer, record)
    if not settings.deep_probe or not secret.get() or record.server ~= "ok" then
        return false
    elseif record.engine ~= "ok" or dict:get("t:" .. peer.id) then
        return true
    end
    local silence = ngx.now() - math.max(last_proof(peer), record.since)
    return silence > (inflight.of(peer) > 0 and STUCK or IDLE)
end

local function run(premature, peer, record)
    if premature then
        return
    end
    local ok, reason = pcall(function()
        ask_server(peer, record)
        if needs_token(peer, record) then
            ask_engine(peer, record)
        end
    end)
    if not ok then
        ngx.log(ngx.ERR, "probe of ", peer.id, " failed: ", reason)
    end
    record.running, record.due = false, ngx.now() + FAST_EVERY
end

-- The lease is elsewhere: what is known here will be old when it comes back.
function probe.forget()
    records = {}
end

-- Start the probes that are due; each in its own thread, so that a silent peer delays no other.
function probe.tick(list)
    for i = 1, #list do
        local peer = list[i]
        local record = record_of(peer)
        local wanted = peer.state ~= "off" or secret.rotating()
        if wanted and not record.running and record.due <= ngx.now() then
            record.running = ngx.timer.at(0, run, peer, record) or false
        end
    end
end

return probe
