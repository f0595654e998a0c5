-- One worker at a time does what must not be done by all: free dead slots, probe the backends.

local SECONDS = 2
local dict = ngx.shared.fleetctl_state

local lease = {}

-- Take or renew the lease; false while another live worker has it. A dead holder's lease runs out.
function lease.held()
    local pid = ngx.worker.pid()
    if dict:get("lease") == pid then
        dict:set("lease", pid, SECONDS)
        return true
    end
    return (dict:add("lease", pid, SECONDS))
end

return lease
