"""`fleetctl trust ID`: the only way a host key is ever accepted."""

from __future__ import annotations

import sys

from fleetctl.cli.change import Options, fleet_of
from fleetctl.errors import UsageError
from fleetctl.fleet import targets
from fleetctl.remote import hostkeys
from fleetctl.remote import target as ssh


def trust(options: Options, word: str, fingerprint: str | None) -> int:
    """Show the fingerprint, ask, record. With --fingerprint, refuse any other."""
    fleet = fleet_of(options)
    machine = targets.machines(fleet, [word])[0]
    target = next(one for one in ssh.targets(fleet) if one.id == machine)
    scanned = hostkeys.scan(target)
    print(f"machine {machine} ({target.label}) shows {scanned.type} {scanned.fingerprint}")
    if fingerprint is None and not options.yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "no terminal to ask",
                next_command=f"fleetctl trust {machine} --fingerprint {scanned.fingerprint}",
            )
        sys.stderr.write(
            "Did you compare it with the machine's own `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`? [y/N] "
        )
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("nothing was recorded")
    hostkeys.trust(target, scanned, expected=fingerprint)
    print(f"recorded for fleet {fleet.name}")
    return 0
