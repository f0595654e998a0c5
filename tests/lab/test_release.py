"""Releases: what was rolled out, going back to what proved good, and never by accident forward again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.conftest import Lab, a_lab

BAD = "quay.io/ascend/vllm-ascend:does-not-start"
ENGINE = "quay.io/ascend/vllm-ascend:qwen3.8-a2"

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two machines that serve release 1, with another image on the source that answers --help and does not start."""
    for lab in a_lab(tmp_path_factory, "release", "10.255.244", [69, 67]):
        lab.run("rollout", "--yes")
        lab.on(
            69,
            "mkdir /root/bad && cd /root/bad && printf '%s\\n' '#!/bin/sh' "
            "'case \"$*\" in *--help*) exec /usr/local/bin/vllm.real \"$@\" ;; esac' 'echo no device >&2' 'exit 1' >vllm "
            f"&& printf '%s\\n' 'FROM {ENGINE}' 'RUN mv /usr/local/bin/vllm /usr/local/bin/vllm.real' "
            "'COPY vllm /usr/local/bin/vllm' 'RUN chmod 755 /usr/local/bin/vllm' >Dockerfile "
            f"&& DOCKER_BUILDKIT=0 docker build -q --network none -t {BAD} .",
        )
        yield lab


def tokens(lab: Lab) -> set[int]:
    return {one["mtp"] for machine in lab.status()["machines"] for one in machine["instances"]}


def test_a_rollback_is_to_the_last_good_release_and_the_way_forward_is_asked_for(served: Lab) -> None:
    served.run("rollout", "--mtp", "5", "--yes")
    assert tokens(served) == {5}
    served.run("rollback", "--yes")
    assert tokens(served) == {4}
    status = served.run("status", code=None)
    assert "went back to 1" in status.out
    served.run("rollout", "--mtp", "5", "--yes", code=2)
    assert "a way back already" in served.run("rollback", "--yes", code=2).err
    assert tokens(served) == {4}
    assert "nothing to do" in served.run("rollback", "1", "--yes").out
    served.run("rollout", "--mtp", "5", "--forward", "--yes")
    assert tokens(served) == {5}
    served.run("rollback", "99", "--yes", code=2)
    served.run("rollback", "1", "--yes")


def test_an_image_that_does_not_start_is_rolled_back_by_itself(served: Lab) -> None:
    before = {one["id"] for m in served.status()["machines"] for one in m["instances"] if one["state"] == "serving"}
    done = served.run("rollout", "--forward", "--image", BAD, "--on-failure", "rollback", "--yes", code=5)
    assert "no device" in done.err, "the engine's last words"
    assert "back to release" in done.err
    states = served.states()
    assert {one for one, state in states.items() if state == "serving"} == before
    assert served.status()["balancer"]["up"] == 8
    document = served.status()
    assert document["release"]["outcome"] == "good"
    assert document["release"]["back_to"] is not None
    history = served.run("history", "-o", "json").json["commands"]
    assert [one["outcome"] for one in history[-2:]] == ["failed", "done"]


def test_a_failed_rollout_without_it_says_how_to_go_back(served: Lab) -> None:
    served.run("rollout", "--forward", "--image", BAD, "--yes", code=1)
    status = served.run("status", code=None)
    assert "half rolled out" in status.out
    served.run("rollback", "--yes")
    assert set(served.states().values()) == {"serving"}
    assert served.status()["balancer"]["up"] == 8


def test_a_plan_that_reality_has_overtaken_is_refused(served: Lab) -> None:
    shown = served.run("plan", "rollout", "--mtp", "3", "-o", "json").json["plan"]
    served.run("stop", "67/3", "--yes")
    refused = served.run("rollout", "--forward", "--mtp", "3", "--plan", shown, "--yes", code=2)
    assert "out of date" in refused.err
    served.run("start", "67/3", "--yes")
    shown = served.run("plan", "rollout", "--mtp", "3", "-o", "json").json["plan"]
    served.run("rollout", "--forward", "--mtp", "3", "--plan", shown, "--yes")
    assert tokens(served) == {3}


def test_what_proved_good_on_one_machine_is_no_target_for_the_rest(served: Lab) -> None:
    served.run("rollout", "--forward", "--mtp", "2", "--machines", "67", "--yes")
    number = served.status()["release"]["number"]
    assert f"release {number} is on 67, and not on 69" in served.run("status", code=None).out
    served.run("rollout", "--mtp", "1", "--yes")
    assert f"release {number} is passed over" in served.run("rollback", "--yes").err
    assert tokens(served) == {3}
    assert f"rollback {number} --machines 67" in served.run("rollback", str(number), "--yes", code=2).err
    assert f"release {number} proved good on 67, and not on 69" in served.run("history").out


def test_a_broken_record_of_a_release_is_named_and_left_out(served: Lab) -> None:
    served.on(
        67, "cp -a /var/lib/fleetctl/release/releases /root/kept; : >/var/lib/fleetctl/release/releases/00001.json"
    )
    said = "67: /var/lib/fleetctl/release/releases/00001.json: it is empty: left out"
    assert said in served.run("status", code=None).out
    assert said in served.run("history").out
    served.on(67, "cp -a /root/kept/00001.json /var/lib/fleetctl/release/releases/; rm -r /root/kept")
    assert said not in served.run("history").out


def test_a_machine_that_joins_gets_the_release_in_force(served: Lab) -> None:
    served.run("rollout", "--forward", "--mtp", "5", "--machines", "69", "--yes")
    served.on(
        67,
        "cd /etc/systemd/system; for u in qwen38*; do systemctl disable --now $u; rm $u; done; systemctl daemon-reload",
    )
    served.on(67, "rm -rf /var/lib/fleetctl/release /etc/fleetctl/release")
    served.run("add-machine", "67", "--yes")
    assert tokens(served) == {5}
