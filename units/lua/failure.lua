-- What went wrong with one try, and whether another backend may be asked. Pure.

-- A dead kept-alive connection shows itself within a round trip; later than this, the backend was at work.
local STALE_SECONDS = 0.2

local failure = {}

-- Answers:
--   connect  nothing was ever sent: nobody listens, or the host is silent
--   stale    the other side had closed a kept-alive connection before it saw the request
--   refused  the backend itself answered 502 or 503
--   timeout  it took the request and is silent: the work may be running
--   died     it took the request and closed the connection before it answered
-- status: of the try as nginx logs it; connected, answered: whether it has a connect and a header time;
-- reused: whether the connection was a kept-alive one; seconds: how long the try took.
function failure.kind(status, connected, answered, reused, seconds)
    if answered then
        return "refused"
    elseif not connected then
        return "connect"
    elseif status == 504 then
        return "timeout"
    elseif reused and seconds < STALE_SECONDS then
        return "stale"
    end
    return "died"
end

local again = { connect = true, stale = true, refused = true }

-- A request whose work may be running, or has run, is never sent a second time.
function failure.may_retry(kind)
    return again[kind] or false
end

-- The nth element of one of nginx's lists over tries ("0.001, -"); nil for "-" and for what is not there.
function failure.nth(list, n)
    local index = 0
    for value in (list or ""):gmatch("[^,:%s]+") do
        index = index + 1
        if index == n then
            return tonumber(value)
        end
    end
    return nil
end

return failure
