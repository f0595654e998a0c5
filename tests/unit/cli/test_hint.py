"""A command that a message names works where it is pasted: on the fleet that was meant."""

from __future__ import annotations

import pytest

from fleetctl.cli import app as command_line
from fleetctl.cli import hint
from fleetctl.errors import FleetctlError


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("status", None),
        ("status -i a.yaml", "a.yaml"),
        ("status -ia.yaml", "a.yaml"),
        ("logs -fi a.yaml 67/2", "a.yaml"),
        ("restart 67/2 --inventory a.yaml -y", "a.yaml"),
        ("restart 67/2 --inventory=a.yaml", "a.yaml"),
        ("status -i a.yaml -i b.yaml", "b.yaml"),
        ("status -i", None),
        ("route -- -i", None),
        ("history -n 5", None),
    ],
)
def test_the_inventory_that_was_typed_is_read_from_the_command_line(line: str, named: str | None) -> None:
    assert hint.typed(line.split()) == named


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("fleetctl check", "fleetctl check -i f.yaml"),
        ("fleetctl logs 67/2; fleetctl restart 67/2", "fleetctl logs -i f.yaml 67/2; fleetctl restart -i f.yaml 67/2"),
        ("fleetctl lock status, then again", "fleetctl lock status -i f.yaml, then again"),
        ("67/0: drift: fleetctl rollout puts it right", "67/0: drift: fleetctl rollout -i f.yaml puts it right"),
        ("run `fleetctl add-machine 67` again", "run `fleetctl add-machine -i f.yaml 67` again"),
        ("(fleetctl start 67/0)", "(fleetctl start -i f.yaml 67/0)"),
        ("fleetctl bench ab --restore", "fleetctl bench -i f.yaml ab --restore"),
        ('eval "$(fleetctl lab env)"', 'eval "$(fleetctl lab env -i f.yaml)"'),
    ],
)
def test_every_command_of_a_hint_has_the_inventory_that_was_typed(text: str, whole: str) -> None:
    assert hint.whole(text, "f.yaml") == whole


@pytest.mark.parametrize(
    "text",
    [
        "fleetctl lab down -i /tmp/lab/inventory.yaml",
        "another fleetctl is at work",
        "it would start as something else than fleetctl wrote",
        "a fleetctl plan-like thing that is no command: fleetctl checks",
        "ssh -p 22 root@10.0.0.1",
        "export FLEET_API_KEY=...",
    ],
)
def test_what_is_no_command_or_names_an_inventory_stays_as_it_is(text: str) -> None:
    assert hint.whole(text, "f.yaml") == text


def test_nothing_is_added_when_no_inventory_was_typed() -> None:
    assert hint.whole("fleetctl check", None) == "fleetctl check"


def test_a_path_with_a_space_can_be_pasted() -> None:
    assert hint.whole("fleetctl check", "my fleet.yaml") == "fleetctl check -i 'my fleet.yaml'"


def test_an_error_has_it_in_all_its_parts() -> None:
    error = FleetctlError(
        "67/0 is out: fleetctl start 67/0", state="see fleetctl status", next_command="fleetctl check"
    )
    assert str(hint.pasteable(error, "f.yaml")).count("-i f.yaml") == 3


def test_every_command_there_is_is_known() -> None:
    command_line._add_groups([])
    named = {one.name or one.callback.__name__ for one in command_line.app.registered_commands if one.callback}
    assert named <= set(hint.COMMANDS)
    for group in command_line.app.registered_groups:
        assert group.name in hint.GROUPS
