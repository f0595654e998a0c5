"""The report of real machines: everything in it is read from them, and one that is gone is said to be gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.conftest import Lab, a_lab

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    for lab in a_lab(tmp_path_factory, "report", "10.255.247", [69, 67]):
        lab.run("rollout", "--yes")
        lab.wait_serving()
        yield lab


def test_versions_checks_and_measurements_are_in_both_languages_and_the_key_is_in_none(fleet: Lab) -> None:
    fleet.run("bench", "distribution", "--keys", "80", "--out", "bench/one.jsonl", "--yes", code=None)
    fleet.run("report", "--out", "fleet", "--lang", "all")
    for name in ("fleet.zh.md", "fleet.en.md", "fleet.zh.html", "fleet.en.html"):
        text = (fleet.folder / name).read_text()
        assert fleet.key not in text, name
        assert fleet.on(69, "uname -r").strip() in text, name
        assert fleet.on(69, "docker version --format '{{.Server.Version}}'").strip() in text, name
        assert "10.255.247.67:8003" in text
    english = (fleet.folder / "fleet.en.md").read_text()
    assert "The running balancer has loaded exactly this configuration" in english
    assert "0 failed" in english
    assert (fleet.folder / "fleet.en-bench-distribution.svg").exists()


def test_a_machine_that_is_gone_is_said_to_be_gone_and_the_report_still_comes(fleet: Lab) -> None:
    fleet.run("lab", "fault", "cut", "67")
    try:
        fleet.run("report", "--out", "gone.md", "--no-verify", code=4)
        text = (fleet.folder / "gone.md").read_text()
        assert "Machine 67: does not answer" in text
        assert "The acceptance checks were not run" in text
    finally:
        fleet.run("lab", "fault", "heal", "67")
