-- Enough JSON to answer with: the distribution's Lua has no cjson.

local json = {}

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function escape(char)
    return escapes[char] or ("\\u%04x"):format(char:byte())
end

local function text(value)
    return '"' .. value:gsub('[%c"\\\127]', escape) .. '"'
end

-- An array of values.
function json.list(values)
    local parts = {}
    for i, value in ipairs(values) do
        parts[i] = json.encode(value)
    end
    return setmetatable({ json = "[" .. table.concat(parts, ",") .. "]" }, json)
end

-- An object with its keys in this order: {{"key", value}, ...}.
function json.object(pairs_)
    local parts = {}
    for i, pair in ipairs(pairs_) do
        parts[i] = text(pair[1]) .. ":" .. json.encode(pair[2])
    end
    return setmetatable({ json = "{" .. table.concat(parts, ",") .. "}" }, json)
end

function json.encode(value)
    if value == nil or value == ngx.null then
        return "null"
    elseif getmetatable(value) == json then
        return value.json
    elseif type(value) == "string" then
        return text(value)
    end
    return tostring(value)
end

return json
