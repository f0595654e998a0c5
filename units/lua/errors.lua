-- Errors of the balancer's own, in the words of the OpenAI API that its clients speak.

local json = require "json"

local errors = {}

local messages = {
    [400] = { "invalid_request_error", "The request is malformed." },
    [404] = { "invalid_request_error", "No such path here." },
    [408] = { "invalid_request_error", "The request did not arrive in time." },
    [413] = { "invalid_request_error", "The request body is larger than this server takes." },
    [414] = { "invalid_request_error", "The request line is too long." },
    [429] = { "rate_limit_error", "Too many requests; try again later." },
    [431] = { "invalid_request_error", "A request header is too large." },
    [502] = { "server_error", "The backend ended the connection before it answered." },
    [503] = { "server_error", "No backend can take this request now; try again later." },
    [504] = { "server_error", "The backend did not answer in time." },
}

-- nginx's own codes, and what HTTP calls them.
local standard = { [495] = 400, [496] = 400, [497] = 400 }

function errors.body(status, id)
    local kind, message = unpack(messages[status] or { "server_error", "The balancer failed." })
    return json.encode(json.object({ {
        "error",
        json.object({
            { "message", message },
            { "type", kind },
            { "param", nil },
            { "code", status },
            { "request_id", id },
        }),
    } })) .. "\n"
end

function errors.answer()
    local var = ngx.var
    local status = tonumber(var.route_status) or ngx.status
    status = standard[status] or status
    ngx.status = status
    ngx.header["Content-Type"] = "application/json"
    if status == 429 or status == 503 then
        ngx.header["Retry-After"] = tonumber(var.route_retry_after) or 1
    end
    ngx.print(errors.body(status, var.request_id))
    return ngx.exit(ngx.HTTP_OK)
end

return errors
