"""What a report begins with: goals and their state, environment, architecture. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from fleetctl.report.document import Block, Cell, Mark, Marked, Section, Table, Text
from fleetctl.report.material import Material
from fleetctl.report.picture import architecture
from fleetctl.report.words import Words
from fleetctl.verify.check import Check, Status, Where

UNKNOWN = "-"
SHOWN = 4  # names of checks in one cell


def goals(material: Material, words: Words) -> Section:
    """The first report's six goals: reached only where a check of this report says so."""
    fleet = material.fleet
    used, there = _devices(material)
    n = len(fleet.instances)
    recovery = [*_checks(material, "units")]
    rows = [
        _goal(words, "serve", _serving(material, words), model=fleet.inventory.model.name, n=n),
        _goal(words, "devices", _used(material, words, used, there), n=used, machines=len(fleet.machines)),
        _goal(words, "entry", _entry(material, words)),
        _goal(words, "auth", _of(words, _checks(material, "auth", "key-files", "unguarded"))),
        _goal(words, "affinity", _of(words, _checks(material, "routing", "session", "reload"))),
        _goal(words, "recovery", _recovered(material, words, recovery)),
    ]
    columns = (words("goal"), words("state"), words("evidence"))
    lead: list[Block] = [Text(words("goals.lead"))]
    if material.errors:
        listed = ", ".join(map(str, material.errors))
        lead.append(Text(words("goals.unreachable", machines=listed), Mark.BAD))
    return Section("goals", words("section.goals"), (*lead, Table(columns, tuple(rows), _about(material, words))))


def _about(material: Material, words: Words) -> str:
    return words("about.looked", when=material.when, n=len(material.facts), all=len(material.fleet.machines))


Judged = tuple[Mark, str, str]  # mark, key of the state's word, evidence


def _goal(words: Words, name: str, judged: Judged, **values: object) -> tuple[Cell, ...]:
    mark, state, evidence = judged
    return (words(f"goal.{name}", **values), Marked(words(f"state.{state}"), mark), evidence)


def _checks(material: Material, *ids: str) -> list[Check]:
    """All doors' checks of these names that looked at something."""
    return [one for one in material.checks if one.id in ids and one.n]


def _of(words: Words, checks: Iterable[Check]) -> Judged:
    """Reached when none failed; what nobody looked at is not known."""
    found = list(checks)
    if not found:
        return Mark.UNKNOWN, "unknown", words("evidence.none")
    n, wrong = sum(one.n for one in found), sum(one.wrong for one in found)
    ids = list(dict.fromkeys(one.id for one in found))
    names = ", ".join(ids) if len(ids) <= SHOWN else words("evidence.many", n=len(ids))
    evidence = words("evidence.checks", names=names, good=n - wrong, n=n)
    if any(one.status is Status.FAIL for one in found):
        return Mark.BAD, "missed", evidence
    odd = any(one.status is Status.WARN for one in found)
    return (Mark.ODD, "partly", evidence) if odd else (Mark.GOOD, "reached", evidence)


def _serving(material: Material, words: Words) -> Judged:
    n, serving = len(material.instances), material.serving
    if not material.facts:
        return Mark.UNKNOWN, "unknown", words("evidence.none")
    text = words("evidence.serving", n=serving, all=n)
    asked = [one for one in _checks(material, "health", "model", "completion") if one.where is Where.DIRECT]
    if asked:
        text += words("join") + _of(words, asked)[2]
    if not serving:
        return Mark.BAD, "missed", text
    if serving < n or any(one.status is Status.FAIL for one in asked):
        return Mark.ODD, "partly", text
    return (Mark.GOOD, "reached", text) if asked else (Mark.ODD, "unproved", text)


def _devices(material: Material) -> tuple[int, int]:
    """NPUs of instances that serve; NPUs there are: as npu-smi says, or the inventory where it said nothing."""
    own = [one for one in material.instances if material.state(one.id).get("state") == "serving"]
    each = material.fleet.inventory.accelerator.devices
    there = sum(
        len({npu.id for npu in facts.npu.npus}) if (facts := material.facts.get(m)) and facts.npu else each
        for m in material.fleet.machines
    )
    return sum(len(one.devices) for one in own), there


def _used(material: Material, words: Words, used: int, there: int) -> Judged:
    if not material.facts:
        return Mark.UNKNOWN, "unknown", words("evidence.none")
    text = words("evidence.devices", n=used, all=there)
    if used >= there:
        return Mark.GOOD, "reached", text
    return (Mark.ODD, "partly", text) if used else (Mark.BAD, "missed", text)


def _entry(material: Material, words: Words) -> Judged:
    """Only a question that went the whole way proves it: NAT is part of it."""
    url = material.fleet.inventory.balancer.public_url
    check = material.check("answers", Where.OUTSIDE)
    if url is None or check is None or check.status is Status.SKIP:
        inner = material.check("answers", Where.BALANCER)
        if inner is not None and inner.status is Status.FAIL:
            return Mark.BAD, "missed", words.said(inner.seen)
        why = words("evidence.no_public") if url is None else words("evidence.not_outside")
        return Mark.UNKNOWN, "unknown", why
    mark, state, text = _of(words, [one for one in material.checks if one.where is Where.OUTSIDE and one.n])
    if mark is Mark.GOOD and _loopback(url):
        return Mark.ODD, "partly", text + words("join") + words("evidence.loopback")
    return mark, state, text


def _loopback(url: str) -> bool:
    """Such an address was asked on this computer only: no user comes that way."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _recovered(material: Material, words: Words, checks: list[Check]) -> Judged:
    """Units that are enabled would come back; that one did come back is what `bench failover` sees."""
    mark, state, text = _of(words, checks)
    ran = material.run("failover")
    if mark is Mark.GOOD and ran is None:
        return Mark.ODD, "configured", text + words("join") + words("evidence.not_killed")
    if ran is not None:
        from fleetctl.bench import views

        seen = views.recovery(ran.run)
        if seen is not None and seen.back is not None:
            # No time of an invalid run counts; that it came back does.
            key = "evidence.killed_untimed" if ran.run.invalid else "evidence.killed"
            text += words("join") + words(key, seconds=f"{seen.back:.1f}", when=ran.run.header.started)
            return mark, state, text
        return Mark.ODD, "configured", text + words("join") + words("evidence.not_back")
    return mark, state, text


def environment(material: Material, words: Words) -> Section:
    parts = (_hardware(material, words), _software(material, words))
    return Section("environment", words("section.environment"), (Text(words("environment.lead")),), parts)


def _hardware(material: Material, words: Words) -> Section:
    fleet, balancer = material.fleet, material.fleet.inventory.balancer
    head = tuple(
        words(f"hardware.{name}") for name in ("machine", "npus", "hbm", "driver", "cpu", "memory", "os", "net")
    )
    rows = tuple(_machine_row(material, words, machine) for machine in fleet.machines)
    facts: list[tuple[Cell, ...]] = [
        (
            words("hardware.machines"),
            words("hardware.counted", n=len(fleet.machines), ids="/".join(map(str, fleet.machines))),
        ),
        (words("hardware.all_npus"), _all_npus(material, words)),
        (words("hardware.all_hbm"), _all_hbm(material)),
        (words("hardware.cluster"), ", ".join(machine.address for machine in fleet.machines.values())),
        (words("hardware.entry"), balancer.public_url or words("picture.no_public")),
    ]
    blocks = (
        Table((words("item"), words("value")), tuple(facts), _about(material, words)),
        Table(head, rows, _about(material, words)),
    )
    return Section("hardware", words("section.hardware"), blocks)


def _machine_row(material: Material, words: Words, machine: int) -> tuple[Cell, ...]:
    name = words("machine", id=machine)
    if machine in material.errors or machine not in material.facts:
        return (name, Marked(words("unreachable"), Mark.BAD), *[UNKNOWN] * 6)
    facts = material.facts[machine]
    said = material.software.get(machine)
    get: Callable[[str], str] = lambda key: said.versions.get(key, UNKNOWN) if said else UNKNOWN  # noqa: E731
    npus = facts.npu.npus if facts.npu else ()
    names = sorted({npu.name for npu in npus if npu.name})
    count = len({npu.id for npu in npus})
    sizes = [npu.hbm_total_mb for npu in npus if npu.hbm_total_mb is not None]
    driver = facts.driver or UNKNOWN
    smi = f" (npu-smi {facts.npu.version})" if facts.npu and facts.npu.version else ""
    net = ", ".join(f"{link} {address}" for link, address in said.addresses) if said else UNKNOWN
    return (
        name,
        f"{count} × {'/'.join(names) or '?'}" if npus else UNKNOWN,
        f"{sum(sizes) / 1024:.0f} GiB" if sizes else UNKNOWN,
        f"{driver}{smi}",
        f"{get('cpus')} × {get('cpu')} ({get('arch')})",
        get("memory"),
        f"{get('os')}, {get('kernel')}",
        net or UNKNOWN,
    )


def _all_npus(material: Material, words: Words) -> str:
    """Only what npu-smi showed: the inventory says what there should be."""
    seen = [len({npu.id for npu in facts.npu.npus}) for facts in material.facts.values() if facts.npu]
    return words("hardware.seen_npus", n=sum(seen), machines=len(seen)) if seen else words("not_readable")


def _all_hbm(material: Material) -> str:
    sizes = [
        npu.hbm_total_mb for facts in material.facts.values() if facts.npu for npu in facts.npu.npus if npu.hbm_total_mb
    ]
    return f"{sum(sizes) / 1024:.0f} GiB (n = {len(sizes)} NPU)" if sizes else UNKNOWN


SOFTWARE = (
    ("Docker", "docker"),
    ("systemd", "systemd"),
    ("CANN Toolkit", "cann"),
    ("vLLM", "vllm"),
    ("vLLM-Ascend", "vllm-ascend"),
    ("torch", "torch"),
    ("torch_npu", "torch-npu"),
    ("transformers", "transformers"),
    ("triton-ascend", "triton-ascend"),
    ("Python", "python"),
)


def _software(material: Material, words: Words) -> Section:
    rows: list[tuple[Cell, ...]] = []
    for title, key in SOFTWARE:
        seen = {str(m): known.versions[key] for m, known in material.software.items() if key in known.versions}
        if key == "vllm":
            seen = dict(material.engines) or seen
        where = words("software.container") if key not in ("docker", "systemd") else words("software.host")
        rows.append((title, _versions(words, seen), where, str(len(seen))))
    balancer = material.fleet.inventory.balancer.machine
    known = material.software.get(balancer)
    web = known.versions.get("balancer") if known else None
    rows.append((words("software.balancer"), web or words("not_readable"), words("software.host"), "1" if web else "0"))
    rows.append((words("software.image"), material.fleet.image, words("software.inventory"), UNKNOWN))
    rows.append((words("software.image_content"), *_content(material, words)))
    rows.append(("fleetctl", material.fleetctl, words("software.here"), "1"))
    columns = (words("software.component"), words("software.version"), words("software.where"), "n")
    return Section("software", words("section.software"), (Table(columns, tuple(rows), _about(material, words)),))


def _content(material: Material, words: Words) -> tuple[str, str, str]:
    seen = {str(m): f"sha256:{facts.image.content[:12]}" for m, facts in material.facts.items() if facts.image}
    return _versions(words, seen), words("software.host"), str(len(seen))


def _versions(words: Words, seen: Mapping[str, str]) -> str:
    """One version when all have the same; otherwise who has which."""
    if not seen:
        return words("not_readable")
    if len(set(seen.values())) == 1:
        return next(iter(seen.values()))
    return "; ".join(
        f"{version}: {', '.join(who for who, own in seen.items() if own == version)}"
        for version in sorted(set(seen.values()))
    )


def picture(material: Material, words: Words) -> Section:
    balancer = material.fleet.inventory.balancer
    lead = words(
        "architecture.lead", machines=len(material.fleet.machines), n=len(material.instances), machine=balancer.machine
    )
    return Section("architecture", words("section.architecture"), (Text(lead), architecture(material, words)))
