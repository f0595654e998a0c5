"""What a probe printed on a lab machine that serves (data/probe-full-69.txt, as it was) becomes facts."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from fleetctl.observe import observe
from fleetctl.observe.facts import Facts

CAPTURE = (Path(__file__).parent / "data" / "probe-full-69.txt").read_text()


@pytest.fixture
def facts() -> Facts:
    return observe.parse(69, CAPTURE)


def test_units_containers_and_health(facts: Facts) -> None:
    assert facts.units["qwen38-tp2-0"].active == "active"
    assert facts.units["docker"].active == "active"
    container = facts.container("qwen38-tp2-3")
    assert container is not None
    assert container.state == "running"
    assert container.ports == (8003,)
    assert container.label("tokens") == "4"
    assert {index: health.http for index, health in facts.health.items()} == dict.fromkeys(range(4), 200)
    assert facts.health[0].model == "Qwen3.8-27B-W8A8"


def test_the_owner_of_a_port_is_its_unit_or_container(facts: Facts) -> None:
    nginx = next(one for one in facts.listeners or () if one.process == "/usr/sbin/nginx")
    assert nginx.owner == "unit openresty-qwen.service"
    proxy = next(one for one in facts.listeners or () if one.port == 8000)
    assert proxy.process == "/usr/sbin/docker-proxy"
    assert observe.owner("0::/system.slice/docker-" + "a" * 64 + ".scope") == "container " + "a" * 12
    assert observe.owner("9:name=systemd:/docker/" + "a" * 64 + "/docker/" + "b" * 64) == "container " + "b" * 12


def test_npus_and_who_holds_them(facts: Facts) -> None:
    assert facts.npu is not None
    assert [npu.id for npu in facts.npu.npus] == list(range(8))
    process = (facts.npu.npus[2].processes or ())[0]
    holder = facts.container_of(facts.npu_owners[process.pid or 0])
    assert holder is not None
    assert holder.name == "qwen38-tp2-1"


def test_model_image_disks_and_driver(facts: Facts) -> None:
    assert facts.model is not None
    assert facts.model.verified
    assert facts.image is not None
    assert len(facts.image.content) == 64
    assert facts.disks["model"].free > 0
    assert facts.driver
    assert facts.host_keys
    assert facts.model_described is True
    assert facts.missing_paths == ()


def test_versions_of_a_model_whose_link_is_gone_are_seen() -> None:
    found = observe.model("arrived 4096\nverified\nversions a b\nversion a\n")
    assert (found.present, found.arrived, found.version, found.versions) == (False, 4096, "a", ("a", "b"))


def test_what_registries_call_an_image_and_what_was_brought_as_what() -> None:
    text = '{"Id": "sha256:1", "Size": 5, "RootFS": {"Layers": []}, "RepoDigests": ["quay.io/x@sha256:2"]}'
    found = observe.image(text)
    assert found is not None
    assert found.digests == ("sha256:2",)
    brought = observe.parse(67, "@@fleetctl brought\nsha256:1 quay.io/x:1\nsha256:2 quay.io/x:2\n")
    assert brought.brought == ("sha256:1", "sha256:2")
    assert brought.brought_as == (("sha256:1", "quay.io/x:1"), ("sha256:2", "quay.io/x:2"))


def test_how_a_job_ended_is_one_word_of_what_systemd_says() -> None:
    lines = "a\texit-code 69\tbytes 1 2 copying\nb\tsuccess 0\tx\nc\t\tbytes 1 2 copying\nd\tsuccess TERM\tx\n"
    assert [one.state for one in observe.progress(lines).values()] == ["failed", "done", "running", "failed"]


def test_the_balancer_speaks_for_itself(facts: Facts) -> None:
    assert facts.balancer is not None
    assert len(facts.balancer.version) == 32
    assert facts.flavour


@pytest.mark.parametrize("cut", range(0, len(CAPTURE), 997))
def test_half_an_answer_never_raises(cut: int) -> None:
    observe.parse(69, CAPTURE[:cut])


def test_nothing_is_unknown_and_not_free() -> None:
    facts = observe.parse(69, "")
    assert facts.containers is None
    assert facts.npu is None
    assert facts.listeners is None
    assert facts.health == {}


def test_unit_files_are_exact_to_the_last_byte_whatever_is_in_them(tmp_path: Path) -> None:
    texts = {"a": "[Unit]\nX=1\n", "b": "no end of line", "c": "", "d": "two\n\n", "e": "\n==> x <==\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in (*texts, "missing")]
    printed = subprocess.run(
        ["tail", "-v", "-n", "+1", "--", *files, "/dev/null"], capture_output=True, text=True, check=False
    ).stdout
    found = observe.parse(67, f"@@fleetctl unit-files\n{printed}\n@@fleetctl units\n")
    assert found.unit_texts == {str(tmp_path / name): text for name, text in texts.items()}
    assert found.files[str(tmp_path / "a")] == hashlib.sha256(texts["a"].encode()).hexdigest()


def test_marks_are_told_apart_by_who_left_them_and_drop_ins_are_seen() -> None:
    note = '{"who":"watchdog","when":"2026-08-29T12:00:00Z","reason":"it hung"}'
    marks = f"stopped/a\t{{}}\nparked/b\t{note}\ndoubtful/c\t{note}\n"
    units = "Id=a.service\nActiveState=active\nDropInPaths=/etc/x.conf /etc/y.conf\n"
    found = observe.parse(67, f"@@fleetctl marks\n{marks}\n@@fleetctl units\n{units}\n")
    assert (list(found.stopped), list(found.parked), list(found.doubtful)) == (["a"], ["b"], ["c"])
    assert found.parked["b"].reason == "it hung"
    assert found.units["a"].dropins == ("/etc/x.conf", "/etc/y.conf")


def test_files_of_the_balancer_that_are_not_as_they_were_applied() -> None:
    """As GNU sha256sum -c --quiet says it (9.1)."""
    said = "/e/nginx.conf: FAILED\n/e/lua/a b.lua: FAILED open or read\n"
    assert observe.parse(69, f"@@fleetctl balancer-files\n{said}\n").balancer_files == {
        "/e/nginx.conf": "changed",
        "/e/lua/a b.lua": "missing",
    }
    assert observe.parse(69, "@@fleetctl balancer-files\n\n@@fleetctl units\n").balancer_files == {}
    assert observe.parse(69, "@@fleetctl units\n").balancer_files is None
