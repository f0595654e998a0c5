"""Made once: everything in it is frozen, and verifying a fleet of values takes a second."""

from __future__ import annotations

import pytest

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.load import load
from fleetctl.report.material import Material
from tests.unit.conftest import ROOT
from tests.unit.report.world import material


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    return load(ROOT / "inventory.yaml")


@pytest.fixture(scope="session")
def whole(fleet: Fleet) -> Material:
    return material(fleet)
