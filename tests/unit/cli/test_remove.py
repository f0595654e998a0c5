"""`remove-machine`: what is refused before any connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.cli.app import run

SHIPPED = str(Path(__file__).parents[3] / "inventory.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["69"], "69 has the balancer, which everybody's requests go through"),
        (["67", "69"], f"balancer.machine in the inventory, fleetctl rollout -i {SHIPPED} --resume, then this again"),
        (["70"], 'no machine "70"'),
        (["70"], "instances that the inventory no longer lists are taken out by fleetctl rollout"),
    ],
)
def test_what_cannot_be_removed_is_a_usage_error(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["remove-machine", *words, "--yes", "-i", SHIPPED]) == 2
    assert said in capsys.readouterr().err
