"""Measuring a fleet: load, raw samples, statistics, scenarios. docs/bench.md says what each number means."""
