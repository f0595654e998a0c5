"""The service as it is configured: run command, parameters, instances, balancer, units. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from fleetctl.balancer import config, peers, plain
from fleetctl.commands import docker, paths, units
from fleetctl.commands.docker import Topology
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.report.document import Block, Cell, Code, Mark, Marked, Section, Table, Text
from fleetctl.report.material import Material
from fleetctl.report.words import Words

UNKNOWN = "-"
SHELL = "sh"


def service(material: Material, words: Words) -> Section:
    first = material.instances[0]
    lead = words("service.lead", devices=len(first.devices), n=len(material.instances))
    parts = (_command(material, words, first), _instances(material, words))
    return Section("service", words("section.service"), (Text(lead),), parts)


def argv(material: Material, which: Instance) -> list[str]:
    """The docker command of an instance, as its unit has it."""
    facts = material.facts.get(which.machine)
    arguments = docker.run_arguments(material.fleet, which, facts.topology if facts else Topology())
    return ["docker", *docker.labelled(arguments, docker.spec(arguments))]


def shell(words: Iterable[str]) -> str:
    """One option a line."""
    lines: list[str] = []
    for word in map(shlex.quote, words):
        if word.startswith("-") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return " \\\n  ".join(lines)


def _command(material: Material, words: Words, first: Instance) -> Section:
    listed = argv(material, first)
    checks = [one for one in (material.check("flags"), material.check("image")) if one is not None and one.n]
    seen = ", ".join(f"{one.id} {one.n - one.wrong}/{one.n}" for one in checks)
    proof = words("command.proved", when=material.verified, seen=seen) if checks else words("command.unproved")
    overrides = material.fleet.overrides
    blocks: list[Block] = [Text(proof)]
    if overrides and material.release is not None:
        blocks.append(Text(words("command.overrides", number=material.release.number)))
    blocks.append(Text(words("command.lead", instance=first.id)))
    blocks += [Code(shell(listed), SHELL), Text(words("command.key"))]
    rows = tuple(_parameter(words, name, value) for name, value in options(listed))
    columns = (words("parameter"), words("value"), words("meaning"))
    blocks.append(Table(columns, rows))
    return Section("command", words("section.command"), tuple(blocks))


def options(listed: Iterable[str]) -> list[tuple[str, str]]:
    """`--name` and its value, of docker and of vllm serve, each pair once."""
    found: list[tuple[str, str]] = []
    for word in listed:
        if word.startswith("-") and len(word) > 1:
            name, equals, value = word.partition("=")
            found.append((name, value) if equals and word.startswith("--") else (word, ""))
        elif found and not found[-1][1]:
            found[-1] = (found[-1][0], word)
    return list(dict.fromkeys(found))


def _parameter(words: Words, name: str, value: str) -> tuple[Cell, ...]:
    key = name
    if name == "-e":
        key = f"-e {value.partition('=')[0]}"
    elif name == "--mount":
        key = f"--mount {value.rpartition('dst=')[2].partition(',')[0]}"
    elif name == "--label":
        key = "--label"
    fallback = words("parameter.env") if name == "-e" else words("parameter.mount") if name == "--mount" else ""
    return (name, value or UNKNOWN, words.get(f"flag {key}", fallback or words("parameter.passed")))


def _instances(material: Material, words: Words) -> Section:
    rows = []
    for one in material.instances:
        seen = material.state(one.id)
        state = str(seen.get("state", "unreachable"))
        mark = Mark.GOOD if state == "serving" else Mark.UNKNOWN if state == "unreachable" else Mark.BAD
        if state in ("loading", "draining", "restarting", "stopped"):
            mark = Mark.ODD
        rows.append(
            (
                words("machine", id=one.machine),
                one.id,
                one.name,
                ",".join(map(str, one.devices)),
                str(one.port),
                one.address,
                Marked(words.get(f"instance.{state}", state), mark),
                words.get(f"table.{seen.get('balancer')}", UNKNOWN),
                UNKNOWN if seen.get("mtp") is None else str(seen["mtp"]),
                str((seen.get("unit") or {}).get("restarts", UNKNOWN)),
            )
        )
    names = ("machine", "id", "name", "npus", "port", "address", "state", "balancer", "mtp", "restarts")
    columns = tuple(words(f"instances.{name}") for name in names)
    about = words("about.instances", when=material.when, n=material.serving, all=len(rows))
    return Section("instances", words("section.instances", n=len(rows)), (Table(columns, tuple(rows), about),))


def balancer(material: Material, words: Words) -> Section:
    settings = material.fleet.inventory.balancer
    lead = words("balancer.lead", machine=settings.machine, port=settings.listen)
    blocks: list[Block] = [Text(lead)]
    live = material.facts.get(settings.machine)
    if live is None or live.balancer is None:
        blocks.append(Text(words("balancer.silent", machine=settings.machine), Mark.BAD))
    parts = (_functions(material, words), _routing(material, words), _configuration(material, words))
    return Section("balancer", words("section.balancer"), tuple(blocks), parts)


def _functions(material: Material, words: Words) -> Section:
    fleet, settings = material.fleet, material.fleet.inventory.balancer
    state = material.status.get("balancer", {})
    up = UNKNOWN if state.get("up") is None else str(state["up"])
    known = UNKNOWN if state.get("backends") is None else str(state["backends"])
    order = " > ".join(words(f"key.{name}") for name in settings.key_order)
    rows: list[tuple[Cell, ...]] = [
        (words("balancer.spread"), words("balancer.spread.value", up=up, known=known, machines=len(fleet.machines))),
        (words("balancer.affinity"), f"{settings.affinity.value}; {order} ({', '.join(settings.session_headers)})"),
        (words("balancer.auth"), words("balancer.auth.value")),
        (words("balancer.paths"), ", ".join(settings.paths)),
        (
            words("balancer.timeouts"),
            words(
                "balancer.timeouts.value", connect=f"{settings.connect_timeout:g}", read=f"{settings.read_timeout:g}"
            ),
        ),
        (words("balancer.body"), settings.body_limit),
        (words("balancer.cors"), f"{', '.join(settings.cors_origins)}; X-Upstream-Addr"),
        (words("balancer.stream"), words("balancer.stream.value")),
        (words("balancer.health"), words("balancer.health.lua" if settings.mode == "lua" else "balancer.health.plain")),
        (
            words("balancer.load"),
            words(
                "balancer.load.value",
                floor=settings.load_floor or config.max_num_seqs(fleet),
                factor=f"{settings.load_factor:g}",
            ),
        ),
        (
            words("balancer.limits"),
            words("balancer.limits.none")
            if settings.requests_per_second is None
            else f"{settings.requests_per_second:g}/s, burst {settings.burst}",
        ),
        ("TLS", words("no") if settings.tls is None else str(settings.tls.certificate)),
    ]
    about = words("about.balancer", when=material.when)
    table = Table((words("balancer.function"), words("balancer.setting")), tuple(rows), about)
    return Section("balancer-functions", words("section.balancer-functions"), (table,))


def _routing(material: Material, words: Words) -> Section:
    settings = material.fleet.inventory.balancer
    n = len(material.peers) or len(material.instances)
    blocks = (Text(words(f"affinity.{settings.affinity.value}", n=n)), Text(words("routing.why")))
    return Section("routing", words("section.routing"), blocks)


def _configuration(material: Material, words: Words) -> Section:
    fleet = material.fleet
    facts = material.facts.get(fleet.inventory.balancer.machine)
    flavour = config.FLAVOURS.get((facts.flavour if facts else None) or "openresty", config.FLAVOURS["openresty"])
    lua = fleet.inventory.balancer.mode == "lua"
    files = config.render(fleet, flavour) if lua else plain.render(fleet, config.PLAIN, material.peers)
    hash_wanted = config.config_hash(files) if lua else plain.loaded_as(files)
    running = facts.balancer.config if facts and facts.balancer else None
    if running is None:
        proof = Text(words("configuration.unknown", wanted=hash_wanted), Mark.ODD)
    elif running == hash_wanted:
        proof = Text(words("configuration.same", hash=hash_wanted, when=material.when))
    else:
        proof = Text(words("configuration.other", wanted=hash_wanted, running=running), Mark.BAD)
    blocks: list[Block] = [Text(words("configuration.lead", folder=paths.balancer(fleet))), proof]
    blocks.append(Code(files["nginx.conf"].rstrip("\n"), "nginx"))
    if material.peers:
        blocks += [
            Text(words("configuration.peers", path=paths.peers(fleet))),
            Code(peers.render(material.peers).rstrip("\n")),
        ]
    return Section("configuration", words("section.configuration"), tuple(blocks))


def units_section(material: Material, words: Words) -> Section:
    parts = (
        _unit_goals(material, words),
        _unit_table(material, words),
        _unit_commands(material, words),
        _port_taken(material, words),
    )
    return Section("units", words("section.units"), (Text(words("units.lead")),), parts)


def _unit_goals(material: Material, words: Words) -> Section:
    check = material.check("units")
    state: Cell = Marked(words("state.unknown"), Mark.UNKNOWN)
    if check is not None and check.n:
        good = not check.wrong
        state = Marked(f"{check.n - check.wrong}/{check.n}", Mark.GOOD if good else Mark.BAD)
    stop = units.shutdown_timeout(material.fleet) + 15
    rows: list[tuple[Cell, ...]] = [
        (
            words("units.crash"),
            "Restart=on-failure, RestartForceExitStatus=0 143, RestartSec=15",
            words("state.configured"),
        ),
        (words("units.boot"), "WantedBy=multi-user.target docker.service", state),
        (
            words("units.order"),
            "Requires=docker.service, After=docker.service network-online.target",
            words("state.configured"),
        ),
        (words("units.stop"), words("units.stop.value", seconds=stop), words("state.configured")),
        (words("units.park"), words("units.park.value"), words("state.configured")),
        (words("units.logs"), "journalctl -u NAME", words("state.configured")),
    ]
    if material.fleet.inventory.watchdog.enabled:
        seconds = material.fleet.inventory.watchdog.hang_seconds
        rows.append((words("units.hang"), words("units.hang.value", seconds=seconds), words("state.configured")))
    columns = (words("goal"), words("units.how"), words("state"))
    about = words("about.units", when=material.verified or material.when, n=check.n if check else 0)
    return Section("unit-goals", words("section.unit-goals"), (Table(columns, tuple(rows), about),))


def _unit_table(material: Material, words: Words) -> Section:
    rows: list[tuple[Cell, ...]] = []
    for one in material.instances:
        unit = material.state(one.id).get("unit")
        rows.append(
            (
                f"{one.name}.service",
                words("machine", id=one.machine),
                f"vLLM {one.id}",
                ",".join(map(str, one.devices)),
                str(one.port),
                *_unit_state(words, unit),
            )
        )
    settings = material.fleet.inventory.balancer
    seen = material.status.get("balancer", {}).get("unit")
    name = words("software.balancer")
    rows.append(
        (
            f"{settings.unit}.service",
            words("machine", id=settings.machine),
            name,
            UNKNOWN,
            str(settings.listen),
            *_unit_state(words, seen),
        )
    )
    columns = tuple(words(f"units.{key}") for key in ("name", "machine", "what", "npus", "port", "state", "restarts"))
    first = material.instances[0]
    facts = material.facts.get(first.machine)
    text = (facts.unit_texts.get(str(paths.unit(first.name))) if facts else None) or None
    origin = words("units.text.read", path=paths.unit(first.name), machine=first.machine, when=material.when)
    if text is None:
        text = units.instance(material.fleet, first, facts.topology if facts else Topology())[0]
        origin = words("units.text.desired", path=paths.unit(first.name))
    blocks = (
        Table(
            columns,
            tuple(rows),
            words("about.looked", when=material.when, n=len(material.facts), all=len(material.fleet.machines)),
        ),
        Text(origin),
        Code(text.rstrip("\n"), "ini"),
    )
    return Section("unit-table", words("section.unit-table"), blocks)


def _unit_state(words: Words, unit: object) -> tuple[Cell, Cell]:
    if not isinstance(unit, dict):
        return Marked(words("state.unknown"), Mark.UNKNOWN), UNKNOWN
    text = f"{unit['active']}/{unit['enabled']}"
    return Marked(text, Mark.GOOD if text == "active/enabled" else Mark.BAD), str(unit["restarts"])


def _unit_commands(material: Material, words: Words) -> Section:
    first, settings = material.instances[0], material.fleet.inventory.balancer
    names = " ".join(f"{one.name}.service" for one in material.fleet.on(first.machine))
    lines = [
        f"# {words('do.status_here')}",
        f"systemctl status {names}",
        f"# {words('do.log_follow')}",
        f"journalctl -u {first.name}.service -f",
        f"# {words('do.log_hour')}",
        f"journalctl -u '{_pattern(material.fleet)}' --since '1 hour ago'",
        f"# {words('do.restart_balancer')}",
        f"systemctl reload {settings.unit}.service",
    ]
    return Section(
        "unit-commands", words("section.unit-commands"), (Text(words("units.commands")), Code("\n".join(lines), SHELL))
    )


def _pattern(fleet: Fleet) -> str:
    return fleet.inventory.instances.name.replace("{index}", "*")


def _port_taken(material: Material, words: Words) -> Section:
    settings = material.fleet.inventory.balancer
    lines = [
        f"ss -ltnp 'sport = :{settings.listen}'",
        "fleetctl check",
        f"systemctl reset-failed {settings.unit}.service",
    ]
    return Section(
        "port-taken",
        words("section.port-taken"),
        (Text(words("port.lead", port=settings.listen)), Code("\n".join(lines), SHELL)),
    )
