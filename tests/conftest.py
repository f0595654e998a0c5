"""For all tests."""

from __future__ import annotations

from hypothesis import settings

# Seconds are the benchmarks' business: a busy box must not fail a property.
settings.register_profile("fleetctl", deadline=None)
settings.load_profile("fleetctl")
