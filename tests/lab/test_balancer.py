"""The balancer in front of simulated engines on real machines: nobody notices when an instance dies, restarts or joins."""

from __future__ import annotations

import json
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

from fleetctl.balancer import routing

from .conftest import ROOT, Lab


@pytest.fixture(scope="module")
def fleet(pair: Lab) -> Iterator[Lab]:
    pair.run("rollout", "--yes")
    yield pair


def complete(lab: Lab, session: str, **body: object) -> tuple[int, str, bytes]:
    """One completion through the balancer: status, backend, body."""
    document = {"model": "Qwen3.8-27B-W8A8", "messages": [{"role": "user", "content": "1+1="}], "max_tokens": 2, **body}
    request = urllib.request.Request(
        f"{lab.url}/v1/chat/completions",
        json.dumps(document).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {lab.key}", "X-Session-ID": session},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["X-Upstream-Addr"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, "", error.read()
    except OSError as error:
        return 0, "", str(error).encode()


class Load:
    """Short requests of many sessions, one after the other in a few threads, until told to stop."""

    def __init__(self, lab: Lab) -> None:
        self.answers: list[tuple[int, str, bytes]] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(lab, n)) for n in range(4)]

    def _run(self, lab: Lab, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            self.answers.append(complete(lab, f"load-{number}-{count}"))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def failures(self) -> list[tuple[int, str, bytes]]:
        return [answer for answer in self.answers if answer[0] != 200]


def home(lab: Lab, session: str) -> str:
    return str(lab.run("route", session, "-o", "json").json["home"])


def session_on(lab: Lab, instance: str) -> str:
    return next(name for name in (f"s{n}" for n in range(200)) if home(lab, name) == instance)


def test_no_request_is_lost_to_a_restart(fleet: Lab) -> None:
    with Load(fleet) as load:
        fleet.wait("requests flow", lambda: len(load.answers) > 20, 30)
        fleet.run("restart", "67/1", "--yes")
        seen = len(load.answers)
        fleet.wait("requests flow on", lambda: len(load.answers) > seen + 20, 30)
    assert load.failures == []


@pytest.mark.matrix
def test_no_request_is_lost_to_a_rollout_that_changes_every_instance(fleet: Lab) -> None:
    with Load(fleet) as load:
        fleet.run("rollout", "--mtp", "3", "--yes")
    assert len(load.answers) > 50
    assert load.failures == []
    fleet.run("rollout", "--yes")


def test_a_stream_ends_whole_while_its_backend_is_drained(fleet: Lab) -> None:
    session = session_on(fleet, "67/2")
    found: list[tuple[int, str, bytes]] = []
    stream = threading.Thread(
        target=lambda: found.append(complete(fleet, session, stream=True, max_tokens=240, ignore_eos=True))
    )
    stream.start()
    fleet.wait("the stream is in flight", lambda: inflight(fleet, "67/2") == 1, 20)
    fleet.run("drain", "67/2")
    assert inflight(fleet, "67/2") == 0
    stream.join(60)
    assert found[0][0] == 200
    assert found[0][2].rstrip().endswith(b"data: [DONE]")
    assert complete(fleet, session)[1] != found[0][1]
    fleet.run("undrain", "67/2")
    assert complete(fleet, session)[1] == found[0][1]


def inflight(lab: Lab, instance: str) -> int:
    peers = lab.run("balancer", "show", "-o", "json").json["peers"]
    return int(next(peer["inflight"] for peer in peers if peer["id"] == instance))


@pytest.mark.matrix
def test_what_a_person_drained_stays_drained_over_a_rollout_and_a_restart(fleet: Lab) -> None:
    session = session_on(fleet, "67/1")
    fleet.run("drain", "67/1")
    done = fleet.run("rollout", "--mtp", "4", "--yes")
    assert "67/1 stays drained" in done.out + done.err
    fleet.run("restart", "67/1", "--yes")
    one = next(i for m in fleet.status()["machines"] for i in m["instances"] if i["id"] == "67/1")
    assert (one["state"], one["balancer"], one["held"], one["mtp"]) == ("draining", "draining", True, 4)
    assert "67/1 is drained, as somebody asked: fleetctl undrain 67/1" in "\n".join(fleet.status()["problems"])
    elsewhere = complete(fleet, session)
    assert elsewhere[0] == 200
    fleet.run("undrain", "--all")
    assert complete(fleet, session)[1] != elsewhere[1]
    fleet.run("rollout", "--yes")


def test_all_is_drained_only_when_asked_twice_and_comes_back_with_one_word(fleet: Lab) -> None:
    assert "--yes" in fleet.run("drain", "--all", code=2).err
    assert "answered 503" in fleet.run("drain", "--all", "--yes").err
    assert complete(fleet, "abc")[0] == 503
    fleet.run("undrain", "--all")
    assert complete(fleet, "abc")[0] == 200
    assert fleet.status()["balancer"]["up"] == 8


@pytest.mark.matrix
def test_a_weight_in_the_inventory_reaches_the_balancer_and_the_plan_says_what_moves(fleet: Lab) -> None:
    document = yaml.safe_load(fleet.inventory.read_text())
    document["balancer"].update(affinity="rendezvous", weights={"67": 3})
    heavy = fleet.inventory.parent / "weights.yaml"
    heavy.write_text(yaml.safe_dump(document, sort_keys=False))
    done = fleet.run("rollout", "--yes", inventory=heavy)
    assert re.search(r"join: 8 -> 8 backends, [1-9][0-9]*% of sessions move", done.out + done.err)
    hits = [complete(fleet, f"w{n}")[1].split(":")[0].rpartition(".")[2] for n in range(60)]
    assert hits.count("67") > 32, "three in four were due"
    fleet.run("rollout", "--yes")


def test_sessions_of_a_killed_instance_move_and_no_later_request_fails(fleet: Lab) -> None:
    fleet.on(
        67, "systemctl disable -q --now qwen38-tp2-3 & kill -9 $(docker inspect -f '{{.State.Pid}}' qwen38-tp2-3); wait"
    )
    answers = [complete(fleet, f"kill-{n}") for n in range(80)]
    assert [answer for answer in answers if answer[0] != 200] == []
    health = json.loads(urllib.request.urlopen(f"{fleet.url}/health", timeout=10).read())
    fleet.wait(
        "the balancer says degraded",
        lambda: json.loads(urllib.request.urlopen(f"{fleet.url}/health", timeout=10).read())["status"] == "degraded",
        30,
    )
    assert health["backends"] in (7, 8)
    fleet.run("start", "67/3", "--yes")


def test_a_configuration_broken_by_hand_is_shown_and_put_right(fleet: Lab) -> None:
    path = f"/etc/fleetctl/{fleet.fleet}/balancer/nginx.conf"
    fleet.on(69, f"echo '# by hand' >>{path}")
    done = fleet.run("balancer", "diff", code=1)
    assert "by hand" in done.out
    fleet.run("balancer", "apply", "--yes")
    assert "as they should be" in fleet.run("balancer", "diff").out
    assert "nothing to do" in fleet.run("balancer", "apply", "--yes").out


def test_lua_broken_by_hand_is_said_by_status_never_restarted_into_and_put_right(fleet: Lab) -> None:
    """nginx -t is content with it; a restart would end what serves for something that does not start."""
    folder = f"/etc/fleetctl/{fleet.fleet}/balancer"
    assert fleet.status()["balancer"]["files"] == {"changed": [], "missing": []}
    fleet.on(69, f"echo 'this is not lua' >>{folder}/lua/keys.lua; rm {folder}/lua/json.lua")
    seen = fleet.status()
    assert seen["verdict"] == "warn"
    assert seen["balancer"]["files"] == {"changed": [f"{folder}/lua/keys.lua"], "missing": [f"{folder}/lua/json.lua"]}
    assert "its lua/keys.lua was changed by hand, its lua/json.lua is gone" in "\n".join(seen["problems"])
    refused = fleet.run("restart", "balancer", "--yes", code=1)
    assert f"{folder}/lua/keys.lua is not as it was applied" in refused.err
    assert complete(fleet, "abc")[0] == 200
    assert "its lua/keys.lua was changed by hand" in fleet.run("plan", "rollout").out
    fleet.run("rollout", "--yes")
    assert fleet.status()["balancer"]["files"] == {"changed": [], "missing": []}
    fleet.run("restart", "balancer", "--yes")
    assert complete(fleet, "abc")[0] == 200


def test_a_bad_configuration_never_replaces_a_good_one(fleet: Lab) -> None:
    override = fleet.inventory.parent / "units" / "lua"
    if override.parent.is_symlink():
        override.parent.unlink()
        shutil.copytree(ROOT / "units", override.parent)
    override.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "units", override.parent, dirs_exist_ok=True)
    module = override / "routing.lua"
    good = module.read_text()
    try:
        module.write_text("this is not lua\n")
        fleet.run("balancer", "apply", "--yes", code=1)
        fleet.run("rollout", "--yes", code=1)
        assert complete(fleet, "abc")[0] == 200
    finally:
        module.write_text(good)
    assert "nothing to do" in fleet.run("balancer", "apply", "--yes").out


@pytest.mark.matrix
def test_a_reload_that_does_not_load_says_so_and_the_old_configuration_serves(fleet: Lab) -> None:
    folder = f"/etc/fleetctl/{fleet.fleet}/balancer"
    for file, line in (("nginx.conf", "nonsense;"), ("lua/keys.lua", "this is not lua")):
        fleet.on(69, f"echo '{line}' >>{folder}/{file}")
        done = fleet.run("balancer", "reload", "--yes", code=1)
        assert "runs on with the configuration it had" in done.err
        assert complete(fleet, "abc")[0] == 200
        fleet.run("balancer", "apply", "--yes")
    fleet.run("balancer", "reload", "--yes")
    assert {peer["health"] for peer in fleet.run("balancer", "show", "-o", "json").json["peers"]} == {"ok"}


def test_a_certificate_that_does_not_fit_its_key_is_refused_and_the_old_configuration_serves(fleet: Lab) -> None:
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout /root/{0}.key -out /root/{0}.crt"
    fleet.on(69, f"{make.format('one')} 2>&1 && {make.format('other')} 2>&1")
    document = yaml.safe_load(fleet.inventory.read_text())
    document["balancer"]["tls"] = {"certificate": "/root/one.crt", "key": "/root/other.key"}
    wrong = fleet.inventory.parent / "tls.yaml"
    wrong.write_text(yaml.safe_dump(document, sort_keys=False))
    done = fleet.run("balancer", "apply", "--yes", code=1, inventory=wrong)
    assert "key values mismatch" in done.err
    assert complete(fleet, "abc")[0] == 200
    assert "nothing to do" in fleet.run("balancer", "apply", "--yes").out


def test_no_key_and_no_session_id_in_the_logs(fleet: Lab) -> None:
    complete(fleet, "a-session-that-is-secret")
    logs = f"/var/log/fleetctl/{fleet.fleet}"
    sid = routing.sid("a-session-that-is-secret")
    fleet.wait("it is logged", lambda: sid in fleet.on(69, f"cat {logs}/access.log"), 10)
    log = fleet.on(69, f"cat {logs}/*.log")
    assert fleet.key not in log
    assert "a-session-that-is-secret" not in log


@pytest.mark.matrix
def test_an_nginx_without_lua_serves_too_and_says_what_it_cannot(fleet: Lab) -> None:
    document = yaml.safe_load(fleet.inventory.read_text())
    document["balancer"]["mode"] = "plain"
    document["rollout"]["drain_timeout"] = 2
    plain = fleet.inventory.parent / "plain.yaml"
    plain.write_text(yaml.safe_dump(document, sort_keys=False))
    done = fleet.run("balancer", "apply", "--yes", inventory=plain)
    assert "without Lua" in done.err
    assert complete(fleet, "abc")[0] == 200
    fleet.run("restart", "67/0", "--yes", inventory=plain)
    fleet.run("rollout", "--yes", inventory=plain)
    assert "nothing to do" in fleet.run("rollout", "--yes", inventory=plain).out
    fleet.run("balancer", "apply", "--yes")
    assert fleet.status()["balancer"]["up"] == 8
