"""Machines and instances leave a serving fleet; a user's playbook is followed to the letter."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from tests.lab.conftest import ROOT, Lab, a_lab

pytestmark = pytest.mark.matrix

TOLD = "/tmp/told"
ENGINE = "quay.io/ascend/vllm-ascend:qwen3.8-a2"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two machines with two instances each, rolled out by a playbook with hooks and a step of the user's own."""
    for lab in a_lab(tmp_path_factory, "removal", "10.255.245", [69, 67], instances={"per_machine": 2}):
        shutil.copytree(ROOT / "playbooks", lab.inventory.parent / "playbooks")
        hook = lab.inventory.parent / "hooks" / "tell.sh"
        hook.parent.mkdir()
        hook.write_text(f'#!/bin/bash\n[[ -n $FLEET ]] && echo "hook $STAGE $MACHINE $ADDRESS" >>{TOLD}\n')
        playbook(
            lab,
            start={"before": [{"name": "tell", "file": "hooks/tell.sh"}]},
            join={
                "steps": [
                    "join",
                    "verify",
                    {"name": "count", "run": f'echo "step $MACHINE $BACKENDS" >>{TOLD}', "on": "balancer"},
                ]
            },
        )
        lab.run("rollout", "--yes")
        yield lab


def playbook(lab: Lab, **stages: dict[str, object]) -> None:
    """The user's copy of the rollout, with these stages changed."""
    document = yaml.safe_load((ROOT / "playbooks/rollout.yaml").read_text())
    for stage in document["stages"]:
        stage.update(stages.get(stage["name"], {}))
    (lab.inventory.parent / "playbooks/rollout.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def table(lab: Lab) -> list[str]:
    lines = lab.on(69, "cat /etc/fleetctl/removal/balancer/peers").splitlines()[1:-1]
    return [line.split()[0] for line in lines]


def ours_on(lab: Lab, machine: int) -> str:
    """Everything of the fleet that a removed machine must not have."""
    return lab.on(
        machine,
        "grep -ls '^# fleet=removal ' /etc/systemd/system/*; docker ps -aq --filter label=fleetctl.fleet=removal; "
        "ls -d /etc/fleetctl/removal /var/lib/fleetctl/removal/release* 2>/dev/null; "
        "ls /etc/systemd/system | grep fleetctl-watchdog-removal",
        check=False,
    )


@contextmanager
def users(lab: Lab) -> Iterator[list[int]]:
    """Sessions that keep asking; what they were answered."""
    codes: list[int] = []
    over = threading.Event()

    def ask() -> None:
        number = 0
        while not over.is_set():
            number += 1
            codes.append(lab.ask(f"user-{number}")[0])

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield codes
    finally:
        over.set()
        thread.join()


def test_the_users_own_steps_run_with_the_facts_and_not_when_there_is_nothing_to_do(served: Lab) -> None:
    assert served.on(67, f"cat {TOLD}") == "hook start 67 10.255.245.67\n"
    first, *rest = served.on(69, f"cat {TOLD}").splitlines()
    assert first == "hook start 69 10.255.245.69"
    before = "10.255.245.69:8000 10.255.245.69:8001"
    # Each is told of the table as its own machine found it.
    assert [line.split()[:2] for line in rest] == [["step", "69"], ["step", "67"]]
    assert before in rest[1]
    again = served.run("rollout", "--yes")
    assert "nothing to do" in again.out, again.err
    assert len(served.on(69, f"cat {TOLD}").splitlines()) == 3


def test_a_step_of_the_users_that_fails_is_named_and_stops_the_rollout(served: Lab) -> None:
    playbook(served, prepare={"before": [{"name": "ask-first", "run": "echo no luck >&2; exit 3", "on": "source"}]})
    plan = served.run("plan", "rollout", "--mtp", "3").out
    assert "before prepare" in plan
    assert "ask-first" in plan
    done = served.run("rollout", "--mtp", "3", "--yes", code=1)
    assert "machine 69: ask-first: " in done.err
    assert "no luck" in done.err
    playbook(served, prepare={"steps": ["release", "image", "key"]})
    assert "playbooks/rollout.yaml" in served.run("rollout", "--yes", code=2).err
    (served.inventory.parent / "playbooks/rollout.yaml").unlink()
    assert served.status()["verdict"] == "ok"


def test_the_machine_of_the_balancer_is_not_removed(served: Lab) -> None:
    assert "has the balancer" in served.run("remove-machine", "69", "--yes", code=2).err


def test_a_machine_leaves_without_a_lost_request_and_a_second_run_changes_nothing(served: Lab) -> None:
    with users(served) as codes:
        shown = served.run("remove-machine", "67", "--yes").err
    assert "leave: 4 -> 2 backends" in shown
    assert set(codes) == {200}
    assert table(served) == ["69/0", "69/1"]
    assert ours_on(served, 67) == ""
    assert served.on(67, f"docker images -q {ENGINE}") != ""
    assert "nothing to do" in served.run("remove-machine", "67", "--yes").out
    states = served.states()
    assert (states["67/0"], states["69/0"]) == ("absent", "serving")


def test_a_rollout_brings_a_machine_back_that_the_inventory_still_lists(served: Lab) -> None:
    served.run("rollout", "--yes")
    assert table(served) == ["69/0", "69/1", "67/0", "67/1"]
    assert served.status()["verdict"] == "ok"


def test_a_release_that_failed_on_a_machine_that_is_taken_out_is_in_force_no_more(served: Lab) -> None:
    """It comes neither to the next machine that joins nor to the rest."""
    served.run("lab", "fault", "engine", "67/0", "garbled")
    served.run("rollout", "--mtp", "2", "--machines", "67", "--canary", "67/0", "--yes", code=1)
    served.run("lab", "fault", "engine", "67/0", "clear")
    assert "half rolled out" in served.run("status", code=None).out
    assert "is on 67 only and goes with it" in served.run("remove-machine", "67", "--yes").err
    found = served.run("status", code=None)
    assert "half rolled out" not in found.out
    assert "nothing to do" in served.run("remove-machine", "67", "--yes").out
    served.run("add-machine", "67", "--yes")
    assert served.status()["verdict"] == "ok"
    assert {one["mtp"] for machine in served.status()["machines"] for one in machine["instances"]} == {4}


def test_a_dead_machine_leaves_the_table_with_exit_code_4_and_is_cleaned_once_it_is_back(served: Lab) -> None:
    served.run("lab", "fault", "poweroff", "67")
    done = served.run("remove-machine", "67", "--yes", code=4)
    assert "67 does not answer" in done.err
    assert table(served) == ["69/0", "69/1"]
    assert {served.ask(f"after-{n}")[0] for n in range(8)} == {200}
    served.run("lab", "fault", "poweron", "67")
    served.wait("67 answers", lambda: served.status()["machines"][1]["reachable"], 60)
    served.run("remove-machine", "67", "--yes")
    assert ours_on(served, 67) == ""


def test_what_the_inventory_no_longer_lists_is_drained_out_by_a_rollout(served: Lab) -> None:
    """A machine is deleted from it, and the other one is to have fewer instances."""
    served.run("add-machine", "67", "--yes")
    assert "leave: 4 -> 2 backends" in served.run("plan", "remove-machine", "67").out
    before = served.inventory.read_text()
    document = yaml.safe_load(before)
    document["instances"]["per_machine"] = 1
    document["machines"] = [machine for machine in document["machines"] if machine["id"] == 69]
    served.inventory.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    assert "67/0" in served.run("status", code=None).out
    with users(served) as codes:
        served.run("rollout", "--yes")
    assert set(codes) == {200}
    assert table(served) == ["69/0"]
    units = served.on(69, "grep -ls '^# fleet=removal instance=' /etc/systemd/system/*.service").split()
    assert len(units) == 1
    assert len(served.on(69, "docker ps -aq --filter label=fleetctl.fleet=removal").split()) == 1
    assert "nothing to do" in served.run("rollout", "--yes").out
    # What is left on a machine that was not listed goes once it is listed again; --purge takes what was brought there.
    served.inventory.write_text(before)
    served.run("remove-machine", "67", "--yes", "--purge")
    assert ours_on(served, 67) == ""
    assert (
        served.on(67, f"docker images -q {ENGINE}; ls -d /data/models/Qwen* /var/cache/fleetctl/removal", check=False)
        == ""
    )
    assert "nothing to do" in served.run("remove-machine", "67", "--yes", "--purge").out
