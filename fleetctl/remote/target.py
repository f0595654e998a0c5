"""How one machine is reached: the inventory's values, and ssh_config's where the inventory says nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Jump, Machine
from fleetctl.remote.ssh_config import SshConfig
from fleetctl.remote.user import name as user_name

USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?/?$")


@dataclass(frozen=True)
class SshTarget:
    """One SSH server: a machine of the fleet, or a jump host on the way to it (then `id` is the machine's).

    `key` is the inventory's own private key, tried first; `identities` are ssh_config's. `agent` is the socket of
    the ssh-agent, None for $SSH_AUTH_SOCK, "none" for no agent. `known_hosts` are the files that may hold the host key,
    `trust_file` the one that `fleetctl trust` writes.
    """

    id: int
    host: str
    port: int = 22
    user: str = "root"
    key: str | None = None
    jump: SshTarget | None = None
    identities: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str | None = None
    proxy_command: str | None = None
    host_key_alias: str | None = None
    known_hosts: tuple[str, ...] = (*USER_KNOWN_HOSTS, *SYSTEM_KNOWN_HOSTS)
    trust_file: Path | None = None
    is_jump: bool = False
    sudo: bool | None = None

    @classmethod
    def of(
        cls,
        machine: Machine,
        config: SshConfig | None = None,
        *,
        base: Path | None = None,
        trust_file: Path | None = None,
    ) -> SshTarget:
        """The target of `machine`. What the inventory gives wins, then ssh_config, then ssh's defaults.

        `base` is the folder that relative key paths start from, `trust_file` the fleet's own known_hosts.
        Raises UsageError for an ssh_config that cannot be read or whose jump hosts go round in a circle.
        """
        ssh = machine.ssh
        resolver = _Resolver(machine.id, config or SshConfig.load(), base, trust_file)
        host = ssh.host or machine.address
        return resolver.resolve(host, user=ssh.user, port=ssh.port, key=ssh.key, jump=ssh.jump, seen=())

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def label(self) -> str:
        """How a person calls this server in a message."""
        return f"jump host {self.address}" if self.is_jump else self.address

    @property
    def host_key_name(self) -> str:
        """The name under which known_hosts files hold this server's key."""
        if self.host_key_alias is not None:
            return self.host_key_alias
        return self.host.lower() if self.port == 22 else f"[{self.host.lower()}]:{self.port}"

    @property
    def becomes_root(self) -> bool:
        """True when commands need `sudo -n`."""
        return self.user != "root" if self.sudo is None else self.sudo

    @property
    def hops(self) -> tuple[SshTarget, ...]:
        """The servers on the way in the order they are reached, this one last."""
        return (*(self.jump.hops if self.jump is not None else ()), self)

    @property
    def ssh_command(self) -> str:
        """What to type to see with ssh itself what is wrong."""
        words = ["ssh"]
        if self.jump is not None:
            words.append("-J " + ",".join(f"{hop.user}@{hop.address}" for hop in self.jump.hops))
        if self.key is not None:
            words.append(f"-i {self.key}")
        if self.port != 22:
            words.append(f"-p {self.port}")
        return " ".join([*words, f"{self.user}@{self.host}"])


def trust_file(inventory: Path, fleet: str) -> Path:
    """The known_hosts file of one fleet: `.fleetctl/<fleet>.known_hosts` beside the inventory."""
    return inventory.resolve().parent / ".fleetctl" / f"{fleet}.known_hosts"


def targets(fleet: Fleet, config: SshConfig | None = None) -> tuple[SshTarget, ...]:
    """The targets of every machine in joining order, with the fleet's own known_hosts file. ssh_config is read once."""
    config = config or SshConfig.load()
    file = trust_file(fleet.path, fleet.name)
    return tuple(
        SshTarget.of(machine, config, base=fleet.path.resolve().parent, trust_file=file)
        for machine in fleet.inventory.machines
    )


@dataclass(frozen=True)
class _Resolver:
    id: int
    config: SshConfig
    base: Path | None
    trust_file: Path | None

    def resolve(
        self,
        alias: str,
        *,
        user: str | None,
        port: int | None,
        key: str | None,
        jump: Jump | tuple[str, ...] | None,
        seen: tuple[str, ...],
    ) -> SshTarget:
        """The target that `ssh alias` would reach; `jump` given wins over ssh_config's."""
        if any(character in f"{alias}{user}" for character in "\n\r\0"):
            raise UsageError(f"machine {self.id}: a host or user name has a line break in it")
        options = self.config.lookup(alias, user, port)
        hop, command = self._way(alias, jump, options, (*seen, alias))
        return SshTarget(
            id=self.id,
            host=str(options.get("hostname", alias)),
            port=self._port(alias, options),
            user=str(options.get("user") or user_name()),
            key=self._path(key) if key is not None else None,
            jump=hop,
            identities=tuple(_identities(options)),
            identities_only=str(options.get("identitiesonly", "no")).lower() == "yes",
            agent=options.get("identityagent"),
            proxy_command=command,
            host_key_alias=options.get("hostkeyalias"),
            known_hosts=self._known_hosts(options),
            trust_file=self.trust_file,
            is_jump=bool(seen),
        )

    def _way(
        self, alias: str, jump: Jump | tuple[str, ...] | None, options: Mapping[str, Any], seen: tuple[str, ...]
    ) -> tuple[SshTarget | None, str | None]:
        """The jump host or the ProxyCommand in the way: at most one of them, the first named wins."""
        if isinstance(jump, Jump):
            self._refuse_circle(jump.host, seen)
            # A default of the inventory's model is nothing that the person gave: ssh_config's port goes before it.
            port = jump.port if "port" in jump.model_fields_set else None
            return self.resolve(jump.host, user=jump.user, port=port, key=jump.key, jump=None, seen=seen), None
        if jump is not None:
            return self._chain(jump, seen), None
        for name, value in options.items():
            if name == "proxycommand":
                return None, value if value and value.lower() != "none" else None
            if name == "proxyjump":
                hops = tuple(hop.strip() for hop in value.split(","))
                # ssh itself ignores a `Host *` jump for the jump host: it does not jump through itself.
                if hops[0].lower() == "none" or _parse_hop(hops[-1])[1] == alias:
                    return None, None
                return self._chain(hops, seen), None
        return None, None

    def _chain(self, hops: tuple[str, ...], seen: tuple[str, ...]) -> SshTarget:
        *before, last = hops
        user, host, port = _parse_hop(last)
        self._refuse_circle(host, seen)
        return self.resolve(host, user=user, port=port, key=None, jump=tuple(before) or None, seen=seen)

    def _refuse_circle(self, host: str, seen: tuple[str, ...]) -> None:
        if host in seen:
            raise UsageError(
                f"machine {self.id}: its jump hosts go round in a circle: {' -> '.join((*seen, host))}",
                next_command=f"ssh -G {seen[0]}",
            )

    def _port(self, alias: str, options: Mapping[str, Any]) -> int:
        text = str(options.get("port", 22))
        if not text.isdecimal():
            raise UsageError(f"ssh_config: Port of {alias} is not a number: {text}", next_command=f"ssh -G {alias}")
        return int(text)

    def _path(self, key: str) -> str:
        path = Path(key).expanduser()
        return str(path if self.base is None else self.base / path)

    def _known_hosts(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        user = str(options.get("userknownhostsfile", " ".join(USER_KNOWN_HOSTS))).split()
        system = str(options.get("globalknownhostsfile", " ".join(SYSTEM_KNOWN_HOSTS))).split()
        own = [str(self.trust_file)] if self.trust_file is not None else []
        return tuple(str(Path(name).expanduser()) for name in (*own, *user, *system) if name.lower() != "none")


def _identities(options: Mapping[str, Any]) -> Iterator[str]:
    for name in options.get("identityfile", ()):
        if name.lower() != "none":
            yield str(Path(name).expanduser())


def _parse_hop(text: str) -> tuple[str | None, str, int | None]:
    """User, host and port of one ProxyJump word. Raises UsageError when it is none."""
    match = HOP.match(text)
    if match is None:
        raise UsageError(f"ssh_config: cannot read the jump host {text!r}")
    port = match["port"]
    return match["user"], match["v6"] or match["host"], int(port) if port is not None else None
