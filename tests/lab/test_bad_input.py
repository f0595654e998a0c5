"""Bad input and bad luck: a clear error with its exit code, nothing half-changed, and the same command finishes later."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from .conftest import Lab


def edited(lab: Lab, name: str, change) -> Path:  # type: ignore[no-untyped-def]
    """A copy of the lab's inventory beside it, changed."""
    document = yaml.safe_load(lab.inventory.read_text())
    change(document)
    path = lab.inventory.parent / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return path


def untouched(lab: Lab, machine: int) -> bool:
    left = lab.on(
        machine, "ls -d /etc/fleetctl/* /var/lib/fleetctl/*/[!h]* /etc/systemd/system/qwen38* 2>/dev/null || true"
    )
    return left.strip() == ""


def test_an_unknown_machine_or_instance_is_a_usage_error_with_the_nearest_name(pair: Lab) -> None:
    done = pair.run("add-machine", "76", "--yes", code=2)
    assert "67" in done.err
    assert "67/2" in pair.run("restart", "67/22", "--yes", code=2).err


def test_an_unknown_key_in_the_inventory_names_file_line_and_column(pair: Lab) -> None:
    path = edited(pair, "unknown-key", lambda d: d["balancer"].update(listn=1))
    done = pair.run("status", code=2, inventory=path)
    assert "unknown-key.yaml:" in done.err
    assert "listen" in done.err


def test_a_device_listed_twice_is_refused(pair: Lab) -> None:
    def twice(document: dict) -> None:  # type: ignore[type-arg]
        document["machines"][1]["instances"] = {"devices": [0, 1, 2, 3, 4, 5, 6, 6]}

    assert "6" in pair.run("plan", code=2, inventory=edited(pair, "twice", twice)).err


def test_a_missing_secret_is_said_before_anything_is_touched(pair: Lab) -> None:
    done = pair.run("add-machine", "67", "--yes", code=2, FLEET_API_KEY="")
    assert "FLEET_API_KEY" in done.err
    assert untouched(pair, 67)


def test_without_a_terminal_the_flag_that_answers_is_named(pair: Lab) -> None:
    done = pair.run("add-machine", "69", code=2)
    assert "--yes" in done.err
    assert untouched(pair, 69)


def test_a_taken_port_names_its_holder_and_stops_the_run(pair: Lab) -> None:
    pair.on(67, "systemd-run -q --unit=squatter python3 -m http.server 8002")
    pair.wait("the squatter listens", lambda: "8002" in pair.on(67, "ss -Hltn"), 20)
    done = pair.run("add-machine", "67", "--yes", code=1)
    assert "port 8002 of 67/2 is held by" in done.err
    assert "squatter.service" in done.err
    assert untouched(pair, 67)
    pair.on(67, "systemctl stop squatter")


def test_a_model_path_that_does_not_exist_on_the_source(pair: Lab) -> None:
    path = edited(pair, "no-model", lambda d: d["model"].update(path="/data/models/nothing"))
    done = pair.run("add-machine", "67", "--yes", code=1, inventory=path)
    assert "/data/models/nothing does not exist" in done.err
    assert untouched(pair, 67)


def test_a_wrong_flag_is_found_by_asking_the_image_itself(pair: Lab) -> None:
    path = edited(pair, "wrong-flag", lambda d: d["engine"].update({"max-modle-len": 5}))
    done = pair.run("add-machine", "69", "--yes", code=None, inventory=path)
    assert done.code in (1, 2)
    assert "max-model-len" in done.err
    assert "qwen38" not in pair.on(69, "ls /etc/systemd/system")


def test_a_wrong_host_key_is_refused_and_nothing_is_sent(pair: Lab) -> None:
    known = next((pair.inventory.parent / ".fleetctl").glob("*.known_hosts"))
    saved = known.read_text()
    lines = [line.split() for line in saved.splitlines()]
    keys = sorted({key for _, _, key in lines})
    known.write_text("".join(f"{name} {kind} {keys[keys.index(key) - 1]}\n" for name, kind, key in lines))
    try:
        done = pair.run("status", code=4)
        assert "host key" in (done.err + done.out).lower()
    finally:
        known.write_text(saved)


def test_a_machine_that_is_down_is_one_row_and_exit_4(pair: Lab) -> None:
    pair.run("lab", "fault", "poweroff", "67")
    try:
        document = pair.run("status", "-o", "json", code=4).json
        assert [m["reachable"] for m in document["machines"]] == [True, False]
        assert {i["state"] for i in document["machines"][1]["instances"]} == {"unreachable"}
        assert pair.run("add-machine", "67", "--yes", code=4).err
    finally:
        pair.run("lab", "fault", "poweron", "67")
        pair.wait("67 is back", lambda: pair.run("status", code=None).code == 0)


def test_a_full_disk_is_refused_and_the_same_command_finishes_later(pair: Lab) -> None:
    pair.run("lab", "fault", "disk-full", "67", "data")
    done = pair.run("add-machine", "67", "--yes", code=1)
    assert "MiB" in done.err or "GiB" in done.err
    assert untouched(pair, 67)
    pair.run("lab", "fault", "disk-free", "67")
    pair.run("add-machine", "69", "67", "--yes")
    assert pair.status()["balancer"]["up"] == 8


def test_a_broken_peers_file_is_named_and_the_old_one_keeps_serving(pair: Lab) -> None:
    path = f"/etc/fleetctl/{pair.fleet}/balancer/peers"
    pair.on(69, f"cp {path} /root/peers; head -c 60 /root/peers >{path}")
    assert pair.ask("abc")[0] == 200
    assert "not whole" in pair.run("status").out
    pair.run("rollout", "--yes")
    assert "not whole" not in pair.run("status").out
    assert pair.ask("abc")[0] == 200


def test_an_image_that_is_nowhere_changes_nothing(pair: Lab) -> None:
    before = pair.status()
    done = pair.run("rollout", "--image", "127.0.0.1:5000/nobody/nothing:1", "--yes", code=1)
    assert "pull" in done.err
    after = pair.status()
    assert after["release"] == before["release"]
    assert after["verdict"] == before["verdict"] == "ok"


@pytest.fixture(autouse=True, scope="module")
def _tidy(pair: Lab):  # type: ignore[no-untyped-def]
    yield
    for path in pair.inventory.parent.glob("*-*.yaml"):
        path.unlink()
    shutil.rmtree(pair.folder / "nothing", ignore_errors=True)
