"""The only place that opens connections: targets, host keys, one connection a machine, fan-out."""
