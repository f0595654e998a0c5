"""The balancer's machine dies: another one takes over what is left, and the dead one comes back as one of many."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.lab.conftest import Lab, a_lab

pytestmark = pytest.mark.matrix

UNIT = "openresty-qwen"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    for lab in a_lab(tmp_path_factory, "moved", "10.255.237", [69, 68, 67], instances={"per_machine": 1}):
        lab.run("rollout", "--yes")
        yield lab


def health(lab: Lab, machine: int) -> str:
    """What a balancer on this machine says of itself; "" where there is none."""
    document = yaml.safe_load(lab.inventory.read_text())
    url = f"http://10.255.237.{machine}:{document['balancer']['listen']}"
    return lab.on(machine, f"curl -s -m 5 {url}/health || true")


def test_another_machine_takes_over_when_the_balancers_dies(served: Lab) -> None:
    served.run("lab", "fault", "poweroff", "69")
    document = yaml.safe_load(served.inventory.read_text())
    document["source"] = document["balancer"]["machine"] = 68
    served.inventory.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    before = served.on(67, "docker ps -q")
    done = served.run("rollout", "--machines", "68,67", "--yes")
    assert '"backends":2,"up":2' in health(served, 68)
    assert served.on(67, "docker ps -q") == before
    assert "copy" not in done.out + done.err
    assert served.run("status", code=4).out.count("69") >= 1


def test_the_old_machine_comes_back_without_a_second_balancer(served: Lab) -> None:
    served.run("lab", "fault", "poweron", "69")
    served.wait("69's instance is back", lambda: served.states()["69/0"] == "waiting to join" or _answers(served), 120)
    served.wait("69 was asked", lambda: "inactive" in served.on(69, f"systemctl is-active {UNIT} || true"), 60)
    assert health(served, 69) == ""
    assert "another machine is the balancer" in served.on(69, f"journalctl -u {UNIT} -b --no-pager -o cat")
    assert f"69: {UNIT}.service is one balancer too many" in served.run("status", code=None).out


def _answers(lab: Lab) -> bool:
    return lab.on(69, "curl -s -o /dev/null -w '%{http_code}' http://10.255.237.69:8000/health || true") == "200"


def test_a_rollout_takes_the_old_machine_in_again(served: Lab) -> None:
    served.run("rollout", "--yes")
    assert '"backends":3,"up":3' in health(served, 68)
    assert (
        served.on(69, f"ls /etc/systemd/system/{UNIT}.service /etc/fleetctl/moved/balancer 2>/dev/null || true") == ""
    )
    assert served.status()["verdict"] == "ok"
    assert "nothing to do" in served.run("rollout", "--yes").out


def test_it_moves_back_while_both_are_alive(served: Lab) -> None:
    document = yaml.safe_load(served.inventory.read_text())
    document["source"] = document["balancer"]["machine"] = 69
    served.inventory.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    served.run("rollout", "--yes")
    assert '"backends":3,"up":3' in health(served, 69)
    # Users may still be sent to the old one: it stays until they are not.
    assert '"backends":3,"up":3' in health(served, 68)
    assert served.status()["verdict"] == "warn"
    served.run("rollout", "--yes")
    assert health(served, 68) == ""
    served.on(69, f"systemctl restart {UNIT}")
    served.wait("the balancer of 69 starts again", lambda: '"up":3' in health(served, 69), 30)
    assert served.status()["verdict"] == "ok"
