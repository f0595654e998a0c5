"""The API key changes under load: nobody is refused, a kill half-way is finished, and then the old key is good nowhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.conftest import Lab, a_lab, kill

pytestmark = pytest.mark.matrix

NEW = "sk-rotated-0123456789abcdef"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    for lab in a_lab(tmp_path_factory, "keys", "10.255.236", [69, 67], instances={"per_machine": 2}):
        lab.run("rollout", "--yes")
        yield lab


@contextmanager
def users(lab: Lab, *keys: str) -> Iterator[dict[str, list[int]]]:
    """Somebody with each key, who keeps asking; what they were answered."""
    codes: dict[str, list[int]] = {key: [] for key in keys}
    over = threading.Event()

    def ask(key: str) -> None:
        while not over.is_set():
            codes[key].append(lab.ask(f"user-{len(codes[key])}", key=key)[0])

    threads = [threading.Thread(target=ask, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    try:
        yield codes
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_both_keys_are_good_until_all_have_changed_also_over_a_kill(served: Lab) -> None:
    old, before = served.key, served.status()["release"]["number"]
    assert "nothing to do" in served.run("key", "rotate", "--yes").out
    served.environment["FLEET_API_KEY"] = NEW
    assert served.ask("abc", key=NEW)[0] == 401
    with users(served, old) as early:
        process = served.start("key", "rotate", "--yes")
        served.wait("the second instance has the new key", lambda: served.status()["balancer"]["old_key"] == 2, 120)
        kill(process)
        assert "fleetctl key rotate finishes it" in served.run("status", code=None).out
        with users(served, NEW) as both:
            served.wait("some were asked meanwhile", lambda: len(both[NEW]) > 20, 30)
        served.environment["FLEET_API_KEY"] = "sk-third-0123456789abcdef"
        assert "third one" in served.run("key", "rotate", "--yes", code=1).err
    served.environment["FLEET_API_KEY"] = NEW
    with users(served, NEW) as late:
        served.run("key", "rotate", "--yes")
    assert {code for codes in (early[old], both[NEW], late[NEW]) for code in codes} == {200}
    assert served.status()["release"]["number"] == before


def test_then_the_old_key_is_refused_everywhere_and_kept_nowhere(served: Lab) -> None:
    old = next(line for line in (served.inventory.parent / "keys" / "api-key").read_text().splitlines() if line)
    with users(served, old) as codes:
        served.wait("some were asked", lambda: len(codes[old]) > 20, 30)
    assert set(codes[old]) == {401}
    for machine in (69, 67):
        assert served.on(machine, f"grep -rlF -e {old} /etc/fleetctl /var/lib/fleetctl || true") == ""
        for port in (8000, 8001):
            ask = f"curl -s -o /dev/null -w '%{{http_code}}' -H 'Authorization: Bearer {old}'"
            assert served.on(machine, f"{ask} http://10.255.236.{machine}:{port}/v1/models") == "401"
    document = served.status()
    assert (document["verdict"], document["balancer"]["old_key"]) == ("ok", None)
    assert "nothing to do" in served.run("key", "rotate", "--yes").out
