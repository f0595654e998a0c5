"""Real sshd processes on loopback ports: what a network library promises is only shown by the real thing."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.remote.target import SshTarget

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def keygen(file: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A new key pair; returns the private key's path."""
    file.unlink(missing_ok=True)
    subprocess.run(
        [
            "ssh-keygen",
            "-q",
            "-t",
            kind,
            *(["-b", "2048"] if kind == "rsa" else []),
            "-N",
            passphrase,
            "-C",
            "test",
            "-f",
            str(file),
        ],
        check=True,
    )
    return file


def wait_until(condition: Callable[[], bool], within: float = 10.0) -> None:
    """Wait for a condition; fails the test when it does not come true."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"did not happen within {within:g} s")
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`."""
    found: list[int] = []
    for child in of_process(pid, f"task/{pid}/children").split():
        found += [int(child), *descendants(int(child))]
    return found


def of_process(pid: int, name: str) -> bytes:
    """The content of /proc/`pid`/`name`; nothing of a process that ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or between that and reading
        return b""


class Server:
    """One sshd. `target` is how fleetctl reaches it, with its host key known."""

    def __init__(
        self, folder: Path, *, host_keys: tuple[str, ...] = ("ed25519",), options: tuple[str, ...] = (), env: str = ""
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.host_keys = [keygen(folder / f"host_{kind}", kind) for kind in host_keys]
        self.user_key = keygen(folder / "user")
        shutil.copy(f"{self.user_key}.pub", folder / "authorized_keys")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            *(f"HostKey {key}" for key in self.host_keys),
            f"AuthorizedKeysFile {folder}/authorized_keys",
            f"PidFile {folder}/pid",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "MaxStartups 100",
            f"SetEnv SHLVL=5 {env}",  # bash under sshd reads ~/.bashrc unless it thinks it is nested: not our business
            *options,
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        self.known_hosts = folder / "known_hosts"
        self.know(*self.host_keys)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [SSHD, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "log")]
        )
        wait_until(self._greets)

    def know(self, *keys: Path) -> None:
        """Make these the keys that known_hosts has for this server."""
        texts = [Path(f"{key}.pub").read_text() for key in keys]
        self.known_hosts.write_text("".join(f"[127.0.0.1]:{self.port} {text}" for text in texts))

    def _greets(self) -> bool:
        if self.process.poll() is not None:
            pytest.fail(f"sshd ended: {(self.folder / 'log').read_text()}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                return probe.recv(4) == b"SSH-"
        except OSError:
            return False

    @property
    def target(self) -> SshTarget:
        return SshTarget(
            id=67,
            host="127.0.0.1",
            port=self.port,
            user=getpass.getuser(),
            key=str(self.user_key),
            agent="none",
            known_hosts=(str(self.known_hosts),),
            trust_file=self.folder / ".fleetctl" / "f.known_hosts",
            sudo=False,
        )

    def sessions(self) -> list[int]:
        """The processes of its sessions that are sshd itself."""
        return [pid for pid in descendants(self.process.pid) if of_process(pid, "comm").startswith(b"sshd")]

    def runs(self, text: bytes) -> bool:
        """Whether a process of one of its sessions has `text` in its command line."""
        return any(text in of_process(pid, "cmdline") for pid in descendants(self.process.pid))

    def signal(self, number: int) -> None:
        """Send a signal to every sshd process that serves a session."""
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        pids = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
