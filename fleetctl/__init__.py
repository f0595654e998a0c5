"""fleetctl: a fleet deployment orchestrator over SSH for large-model servers."""

__version__ = "0.1.0"
