"""Real machines in containers on this box: `up`, `down`, `status`, `env`, `fault` (design, sections 2 and 3)."""

from fleetctl.lab.faults import fault
from fleetctl.lab.lab import MachineStatus, Options, Status, down, env, status, up
from fleetctl.lab.layout import default_folder

__all__ = ["MachineStatus", "Options", "Status", "default_folder", "down", "env", "fault", "status", "up"]
