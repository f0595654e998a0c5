"""What one look at a starting instance means: serving, still loading, or dead. Pure.

Fail at once on dead, not on slow (design, promise 6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fleetctl.balancer.peers import Peer
from fleetctl.fleet.instance import Instance
from fleetctl.observe.facts import parse_json, served_models
from fleetctl.observe.npu_smi import parse_info
from fleetctl.observe.observe import sections
from fleetctl.plan.checks import BUSY_MB
from fleetctl.plan.operation import Judgement, Verdict

IDLE_MB = 6 * 1024  # an idle card shows 2.8 to 3.5 GB (facts/ascend-vllm.md 2.5)
FATAL = ("get_arch", "EngineCore failed to start", "unrecognized arguments", "Address already in use")


def _dead(words: str) -> Judgement:
    return Judgement(Verdict.DEAD, words)


def _pending(words: str) -> Judgement:
    return Judgement(Verdict.PENDING, words)


def serving(instance: Instance, model: str) -> Callable[[str], Judgement]:
    """Judge the output of `gate.sh`: unit, container, health, name, 401, a real completion, and its own NPUs.

    Restarts count from the first look: those before it had a cause that may be mended.
    """
    before: list[int] = []

    def judge(text: str) -> Judgement:
        part = sections(text)
        unit = dict(line.split("=", 1) for line in part.get("unit", "").splitlines() if "=" in line)
        if unit.get("ActiveState") in ("failed", "inactive"):
            return _dead(f"unit {unit.get('ActiveState')} ({unit.get('Result')}, exit {unit.get('ExecMainStatus')})")
        before.append(int(unit.get("NRestarts") or 0))
        restarts = before[-1] - before[0]
        if restarts >= 2:
            return _dead(f"it keeps dying: {restarts} restarts")
        if part.get("health", "").strip() != "200":
            log = part.get("log", "").strip()
            if any(sign in log for sign in FATAL):
                return _dead(log)
            return _pending(f"loading ({log[-90:]})" if log else "loading")
        return _answers(part, instance, model)

    return judge


def _answers(part: dict[str, str], instance: Instance, model: str) -> Judgement:
    listed, unauthorized = part.get("models", "").strip(), part.get("unauthorized", "").strip()
    if not listed or unauthorized in ("", "000"):  # a server that has just begun may be busy for longer than we ask
        return _pending("/v1/models gives no answer")
    names = served_models(parse_json(listed))
    if model not in names:
        return _dead(f"/v1/models lists {', '.join(names) or listed[:80]}, not {model}")
    if unauthorized != "401":
        return _dead(f"it answers {unauthorized} without a key, 401 was due")
    body, _, code = part.get("completion", "").strip().rpartition("\n")
    answer = parse_json(body)
    if code.strip() != "200" or not isinstance(answer, dict) or not answer.get("choices"):
        return _pending(f"a completion answers {code.strip() or 'nothing'}")
    return _own_devices(part, instance)


def _own_devices(part: dict[str, str], instance: Instance) -> Judgement:
    """Exactly its own NPUs have a process of its container."""
    pids = {int(line) for line in part.get("pids", "").split() if line.isdigit()}
    report = parse_info(part.get("npu", ""))
    told = {npu.id for npu in report.npus if npu.processes is not None}
    if silent := set(instance.devices) - told:
        return _pending(f"npu-smi does not say who holds NPU {_list(silent)}")
    if not pids:
        return _pending("Docker does not say which processes are its own")
    held = {
        npu.id
        for npu in report.npus
        for process in npu.processes or ()
        if process.pid in pids and (process.memory_mb is None or process.memory_mb >= BUSY_MB)
    }
    if held != set(instance.devices):
        wanted, seen = _list(instance.devices), _list(held)
        return _dead(f"it runs on NPUs {seen}, {wanted} were due: check accelerator.device_mode")
    return Judgement(Verdict.PASS, "serving")


def _list(devices: set[int] | tuple[int, ...]) -> str:
    return ",".join(map(str, sorted(devices))) or "none"


def devices_free(instance: Instance) -> Callable[[str], Judgement]:
    """Judge `npu-smi info`: the instance's NPUs are healthy and hold no process."""

    def judge(text: str) -> Judgement:
        report = parse_info(text)
        if not report.npus:
            return _pending("npu-smi gives no answer")
        seen = {npu.id: npu for npu in report.npus}
        for device in instance.devices:
            npu = seen.get(device)
            if npu is None:
                return _dead(f"NPU {device} is not there")
            if npu.processes is None:
                return _pending(f"npu-smi does not say who holds NPU {device}")
            busy = [p for p in npu.processes or () if p.memory_mb is None or p.memory_mb >= BUSY_MB]
            if busy:
                return _pending(f"NPU {device} still holds {', '.join(f'{p.name} (pid {p.pid})' for p in busy)}")
            if npu.hbm_used_mb is not None and npu.hbm_used_mb > IDLE_MB:
                return _pending(f"NPU {device} still has {npu.hbm_used_mb} MB in use")
        return Judgement(Verdict.PASS, "free")

    return judge


def drained(instance: Instance | Peer) -> Callable[[str], Judgement]:
    """Judge the balancer's state document: nothing in flight on the instance."""

    def judge(text: str) -> Judgement:
        state = parse_json(text)
        peers = state.get("peers", []) if isinstance(state, dict) else None
        if peers is None:
            return _pending("the balancer gives no answer")
        inflight = next((peer.get("inflight") for peer in peers if peer.get("id") == instance.id), 0)
        if inflight is None:
            return _pending("the balancer does not say how many requests are in flight")
        if inflight:
            return _pending(f"{inflight} requests in flight")
        return Judgement(Verdict.PASS, "nothing in flight")

    return judge


def config_loaded(wanted: str) -> Callable[[str], Judgement]:
    """Judge the state document: the running balancer says it has this configuration."""

    def judge(text: str) -> Judgement:
        state = parse_json(text)
        seen = state.get("config") if isinstance(state, dict) else None
        if seen == wanted:
            return Judgement(Verdict.PASS, "loaded")
        return _pending(f"the balancer says {seen or 'nothing'}, {wanted} was due")

    return judge


def nobody_left(text: str) -> Judgement:
    """Judge the output of `old_workers.sh`: the workers of a configuration that is going have no requests left."""
    count = text.strip()
    return Judgement(Verdict.PASS, "all are through") if count == "0" else _pending(f"{count} workers have requests")


def _found(peers: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{peer.get('id')} {peer.get('health') or peer.get('state')}" for peer in peers) or "nobody"


def in_use(instances: Sequence[Instance]) -> Callable[[str], Judgement]:
    """Judge the state document: the balancer finds them well and sends to them."""

    def judge(text: str) -> Judgement:
        state = parse_json(text)
        peers = {peer.get("id"): peer for peer in state.get("peers", [])} if isinstance(state, dict) else {}
        wanted = [peers.get(instance.id, {}) for instance in instances]
        # Without Lua the balancer has no opinion of its own. What a person drained meanwhile is not waited for.
        late = [
            peer
            for peer in wanted
            if peer.get("state") not in ("up", "held") or (peer["state"] == "up" and peer.get("health", "ok") != "ok")
        ]
        if late or not peers:
            return _pending(f"the balancer finds {_found(late)}")
        return Judgement(Verdict.PASS, "in use")

    return judge


def knows_key(instance: Instance) -> Callable[[str], Judgement]:
    """Judge the state document: while there are two keys, the balancer has seen that this engine takes the new one."""

    def judge(text: str) -> Judgement:
        state = parse_json(text)
        rows = state.get("peers", []) if isinstance(state, dict) else []
        row = next((row for row in rows if row.get("id") == instance.id), None)
        if not rows or (row is not None and row.get("key") == "old"):
            return _pending("the balancer would still send it the old key")
        return Judgement(Verdict.PASS, "it is sent the new key")

    return judge


def no_old_key(text: str) -> Judgement:
    """Judge the state document: nobody that may take requests has an engine of the old key."""
    state = parse_json(text)
    rows = state.get("peers", []) if isinstance(state, dict) else []
    late = [str(row.get("id")) for row in rows if row.get("key") == "old" and row.get("state") != "off"]
    if late or not rows:
        return _pending(f"{', '.join(late)} did not take the new key" if late else "the balancer says nothing")
    return Judgement(Verdict.PASS, "all took the new key")


def answered_by(expected: Sequence[str]) -> Callable[[str], Judgement]:
    """Judge `balancer_verify.sh`: the session at each place answered 200 from the address that its key computes to."""

    def judge(text: str) -> Judgement:
        seen = _answers_by_place(text)
        wrong = []
        for place, address in enumerate(expected):
            code, *rest = seen.get(place, ["000"])
            if code != "200" or rest != [address]:
                wrong.append(f"{code} from {rest[0] if rest else 'nobody'}, {address} was due")
        if wrong:
            return _pending(f"{len(wrong)} of {len(expected)} backends: {'; '.join(wrong[:3])}")
        return Judgement(Verdict.PASS, f"{len(expected)} backends answer as computed")

    return judge


def _answers_by_place(text: str) -> dict[int, list[str]]:
    rows = [words for words in map(str.split, text.splitlines()) if len(words) >= 2 and words[0].isdigit()]
    return {int(words[0]): words[1:] for words in rows}


def all_hit(addresses: set[str]) -> Callable[[str], Judgement]:
    """Judge `balancer_verify.sh`: every session answered 200, and every backend answered one."""

    def judge(text: str) -> Judgement:
        seen = list(_answers_by_place(text).values())
        failed = [words for words in seen if words[0] != "200"]
        missing = addresses - {words[-1] for words in seen}
        if failed or missing or not seen:
            return _pending(f"{len(failed)} of {len(seen)} failed, never hit: {', '.join(sorted(missing)) or 'none'}")
        return Judgement(Verdict.PASS, f"{len(addresses)} backends answer")

    return judge
