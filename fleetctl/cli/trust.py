"""`fleetctl trust ID`: the only way a host key is ever accepted."""

from __future__ import annotations

import sys

from fleetctl.cli.change import fleet_of
from fleetctl.cli.options import Options
from fleetctl.errors import UsageError
from fleetctl.fleet import targets
from fleetctl.remote import hostkeys, scan
from fleetctl.remote import target as ssh


def trust(options: Options, word: str, fingerprint: str | None) -> int:
    """Show the fingerprint, ask, record; the jump hosts on the way first. With --fingerprint, refuse any other."""
    fleet = fleet_of(options)
    machine = targets.machines(fleet, [word])[0]
    target = next(one for one in ssh.targets(fleet) if one.id == machine)
    while (found := scan.untrusted(target)) is not None:
        hop, key = found
        print(f"{hop.label if hop.is_jump else f'machine {machine} ({hop.label})'} shows {key.type} {key.fingerprint}")
        if fingerprint is None or hop.is_jump:
            _ask(options, machine, key.fingerprint)
        hostkeys.trust(hop, key, expected=None if hop.is_jump else fingerprint)
        print(f"recorded for fleet {fleet.name}")
    print(f"the host key of machine {machine} is known")
    return 0


def _ask(options: Options, machine: int, fingerprint: str) -> None:
    """Raises UsageError unless a person, or --yes, says that the fingerprint is right."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        again = f"fleetctl trust {machine} --fingerprint {fingerprint}"
        raise UsageError("no terminal to ask", next_command=again)
    sys.stderr.write("Is it what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` says on its own console? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was recorded")
