"""Texts of the systemd units: templates of `units/`, values quoted by systemd's own rules."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from fleetctl import resources
from fleetctl.commands import docker, paths
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance

DOCKER = "/usr/bin/docker"
UNSIGNED = "-" * 12
SIGNATURE = re.compile(r"^(# fleet=.* text=)([0-9a-f]{12})$", flags=re.M)
LOOKS = 6  # of the watchdog, in the time after which an engine hangs


def systemd_word(word: str) -> str:
    """One word of an Exec line: `%` and `$` are doubled, the rest is quoted as systemd.syntax(7) says."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    text = text.replace("\n", "\\n").replace("\t", "\\t")
    plain = text and all(c.isalnum() or c in "@_-+=:,./%$[]" for c in text)
    return text if plain else f'"{text}"'


def exec_line(argv: list[str]) -> str:
    """An argument vector as the value of ExecStart, one option a line for the reader."""
    lines, line = [], ""
    for word in map(systemd_word, argv):
        if word.startswith("-") and line:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
    lines.append(line)
    return " \\\n  ".join(lines)


def shutdown_timeout(fleet: Fleet) -> int:
    """Seconds the engine gives to requests in flight after SIGTERM; vLLM's own default is 0 (none)."""
    value = fleet.engine.get("shutdown-timeout", 0)
    return int(value) if isinstance(value, int | float | str) else 0


def instance(fleet: Fleet, which: Instance, topology: docker.Topology) -> tuple[str, str]:
    """Text of the instance's unit and its spec hash."""
    argv = docker.run_arguments(fleet, which, topology)
    spec_hash = docker.spec(argv)
    stop = shutdown_timeout(fleet) + 15
    own = f'docker ps -aq --filter "name=^{which.name}$" --filter label=fleetctl.fleet={fleet.name}'
    text = _render(
        "instance.service.j2",
        fleet,
        unsigned=UNSIGNED,
        instance=which,
        spec=spec_hash,
        clear=exec_line(["/bin/sh", "-c", f'ids=$({own}); [ -z "$ids" ] || exec docker rm -f $ids']),
        start=exec_line([DOCKER, *docker.labelled(argv, spec_hash)]),
        stop=exec_line([DOCKER, "stop", "-t", str(stop), which.name]),
        stop_timeout=stop + 15,
    )
    return signed(text), spec_hash


def signed(text: str) -> str:
    """The unit names its own content in its header, so that an edit is seen on the machine whatever is desired now."""
    return text.replace(f" text={UNSIGNED}\n", f" text={_digest(text)}\n", 1)


def edited(text: str) -> bool | None:
    """Whether a unit differs from what some fleetctl wrote; None where its header does not say what that was."""
    found = SIGNATURE.search(text)
    if found is None:
        return None
    return _digest(SIGNATURE.sub(rf"\g<1>{UNSIGNED}", text, count=1)) != found.group(2)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def watchdog(fleet: Fleet, machine: int) -> dict[str, str]:
    """Script, service and timer of a machine's watchdog, by path; nothing where none is wanted."""
    inventory = fleet.inventory
    settings, instances = inventory.watchdog, fleet.on(machine)
    if not settings.enabled or not instances:
        return {}
    script, service, timer = map(str, paths.watchdog_files(fleet))
    argv = ["/bin/sh", script, fleet.name, str(settings.hang_seconds), str(round(inventory.rollout.start_timeout))]
    argv += [str(settings.restarts_per_hour), str(settings.dead_drafts), inventory.model.name]
    argv += [f"{one.id}={one.name}={one.address}" for one in instances]
    return {
        script: resources.read("units", "watchdog.sh", fleet.path.parent),
        service: _render("watchdog.service.j2", fleet, start=exec_line(argv)),
        timer: _render("watchdog.timer.j2", fleet, every=max(1, settings.hang_seconds // LOOKS)),
    }


def balancer(fleet: Fleet, binary: str, open_files: int) -> str:
    """Text of the balancer's unit. `open_files`: computed by `balancer.config.open_files`."""
    config = paths.balancer(fleet) / "nginx.conf"
    return _render(
        "balancer.service.j2",
        fleet,
        binary=binary,
        config=config,
        test=exec_line([binary, "-t", "-q", "-c", str(config)]),
        start=exec_line([binary, "-c", str(config), "-g", "daemon off;"]),
        open_files=open_files,
        alone=paths.alone(fleet),
    )


def alone(fleet: Fleet) -> dict[str, str]:
    """What says whether the balancer may start, by path: the program, and where other machines would answer as one."""
    balancer = fleet.inventory.balancer
    scheme = "https" if balancer.tls else "http"
    addresses = [machine.address for machine in fleet.machines.values() if machine.id != balancer.machine]
    hosts = [f"[{address}]" if ":" in address else address for address in addresses]
    return {
        str(paths.alone(fleet)): resources.read("units", "alone.sh", fleet.path.parent),
        str(paths.others(fleet)): "".join(f"{scheme}://{host}:{balancer.listen}/health\n" for host in hosts),
    }


def _render(template: str, fleet: Fleet, **values: Any) -> str:
    text: str = _template(template, fleet.path.parent).render(fleet=fleet, **values)
    return text


@cache
def _template(name: str, folder: Path) -> Any:
    # jinja2 takes 50 ms to import; only commands that render pay for it.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701
    return environment.from_string(resources.read("units", name, folder))
