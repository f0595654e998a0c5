"""For all tests."""

from __future__ import annotations

import os
import random
from collections.abc import Generator

import pytest
from hypothesis import settings

# Seconds are the benchmarks' business: a busy box must not fail a property.
settings.register_profile("fleetctl", deadline=None)
settings.load_profile("fleetctl")

SEED = int(os.environ.get("FLEETCTL_SEED") or random.SystemRandom().randrange(10**6))
PASSED = "fleetctl/passed"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--go-on", action="store_true", help="leave out what has passed since the last run without this")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed {SEED} (FLEETCTL_SEED={SEED} places faults at the same moments)"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A long matrix can be gone on with: after a failure that was mended, or a night that ended it."""
    if hasattr(config, "workerinput") or config.option.collectonly or config.option.markexpr != "matrix":
        return
    known = config.cache
    assert known is not None
    passed = set(known.get(PASSED, []) if config.getoption("--go-on") else [])
    known.set(PASSED, sorted(passed))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Written test by test: whatever ends the run, what has passed is known."""
    report = yield
    known = item.config.cache
    if report.when == "call" and report.passed and item.config.option.markexpr == "matrix" and known is not None:
        known.set(PASSED, sorted({*known.get(PASSED, []), item.nodeid}))
    return report


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """The same for the same seed and test, whatever else is run."""
    return random.Random(f"{SEED} {request.node.nodeid}")
