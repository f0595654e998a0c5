-- Counters, as Prometheus text. Each worker counts for itself and adds to the shared numbers every tick.

local dict = ngx.shared.fleetctl_metrics

local BUCKETS = { 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120 }

local SLOTS = {}
for i, le in ipairs(BUCKETS) do
    SLOTS[i] = "ttfb:" .. le
end

local metrics = {}

local pending = {}

local function count(name, by)
    pending[name] = (pending[name] or 0) + by
end

function metrics.flush()
    for name, value in pairs(pending) do
        dict:incr(name, value, 0)
        pending[name] = nil
    end
end

-- Names are as they are printed; built once, because this runs for every request.
local names = {}

local function name_of(backend, status, why)
    local of_backend = names[backend] or {}
    local of_status = of_backend[status] or {}
    names[backend], of_backend[status] = of_backend, of_status
    of_status[why] = of_status[why]
        or 'fleet_requests_total{backend="' .. backend .. '",code="' .. status .. '",why="' .. why .. '"}'
    return of_status[why]
end

local sources = {
    session = 'fleet_affinity_source_total{source="session"}',
    bearer = 'fleet_affinity_source_total{source="bearer"}',
    client = 'fleet_affinity_source_total{source="client"}',
}

-- One request is over.
function metrics.request(backend, status, why, source)
    count(name_of(backend, status, why), 1)
    count(sources[source], 1)
end

function metrics.retry(backend, kind)
    count('fleet_failures_total{backend="' .. backend .. '",kind="' .. kind .. '"}', 1)
end

function metrics.cut(backend)
    count('fleet_stream_cut_total{backend="' .. backend .. '"}', 1)
end

function metrics.refused()
    count("fleet_refused_total", 1)
end

local function bucket(seconds)
    for i = 1, #BUCKETS do
        if seconds <= BUCKETS[i] then
            return SLOTS[i]
        end
    end
    return "ttfb:+Inf"
end

-- Seconds from the request to the first byte of its answer.
function metrics.first_byte(seconds)
    count(bucket(seconds), 1)
    count("fleet_ttfb_seconds_sum", seconds)
end

local function histogram(lines)
    local sum = 0
    for i = 1, #BUCKETS + 1 do
        local le = BUCKETS[i] or "+Inf"
        sum = sum + (dict:get("ttfb:" .. le) or 0)
        lines[#lines + 1] = 'fleet_ttfb_seconds_bucket{le="' .. le .. '"} ' .. sum
    end
    lines[#lines + 1] = "fleet_ttfb_seconds_sum " .. (dict:get("fleet_ttfb_seconds_sum") or 0)
    lines[#lines + 1] = "fleet_ttfb_seconds_count " .. sum
end

local help = {
    { "fleet_requests_total", "Requests by backend, status and why they went there." },
    { "fleet_affinity_source_total", "Requests by where their affinity key came from." },
    { "fleet_failures_total", "Failed tries by backend and kind; a retry follows where it may." },
    { "fleet_stream_cut_total", "Answers that a backend did not finish." },
    { "fleet_refused_total", "Requests answered 429 by the balancer." },
}

local function family(lines, names, name, text)
    lines[#lines + 1] = "# HELP " .. name .. " " .. text
    lines[#lines + 1] = "# TYPE " .. name .. " counter"
    for _, key in ipairs(names) do
        if key:match("^[%w_]+") == name then
            lines[#lines + 1] = key .. " " .. dict:get(key)
        end
    end
end

-- The whole page. gauges: { name, help, { { labels, value }, ... } }.
function metrics.page(gauges)
    metrics.flush()
    local lines, names = {}, dict:get_keys(0)
    table.sort(names)
    for _, entry in ipairs(help) do
        family(lines, names, entry[1], entry[2])
    end
    lines[#lines + 1] = "# HELP fleet_ttfb_seconds Seconds from the request to the first byte of its answer."
    lines[#lines + 1] = "# TYPE fleet_ttfb_seconds histogram"
    histogram(lines)
    for _, gauge in ipairs(gauges) do
        lines[#lines + 1] = "# HELP " .. gauge[1] .. " " .. gauge[2]
        lines[#lines + 1] = "# TYPE " .. gauge[1] .. " gauge"
        for _, sample in ipairs(gauge[3]) do
            lines[#lines + 1] = gauge[1] .. sample[1] .. " " .. sample[2]
        end
    end
    return table.concat(lines, "\n") .. "\n"
end

return metrics
