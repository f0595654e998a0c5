"""Host keys: which are known, what a server shows, and recording one after a person has looked at it.

Nothing is ever accepted by itself. Files are read as OpenSSH does: hashed names, patterns, `[host]:port`, @revoked;
@cert-authority lines are passed over, because paramiko does not offer host certificates.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import HostKeyError
from fleetctl.remote.target import SshTarget

# What a server is asked for when a key of that type is known; the file says ssh-rsa for all three.
RSA_ALGORITHMS = ("rsa-sha2-512", "rsa-sha2-256")


@dataclass(frozen=True)
class HostKey:
    """A public host key: `type` as in known_hosts (ssh-ed25519, ...), the key in base64."""

    type: str
    base64: str

    @property
    def fingerprint(self) -> str:
        """`SHA256:...`, what `ssh-keygen -lf` prints."""
        digest = hashlib.sha256(base64.b64decode(self.base64)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True)
class Entry:
    """A key found for a server, and the `file:line` that holds it."""

    key: HostKey
    where: str
    revoked: bool = False


def known(target: SshTarget) -> tuple[Entry, ...]:
    """Every key recorded for `target` in its known_hosts files. Files that cannot be read hold none."""
    return tuple(
        entry for name in target.known_hosts for entry in _entries(Path(name).expanduser(), target.host_key_name)
    )


def check(target: SshTarget, key: HostKey, entries: Iterable[Entry]) -> None:
    """Raises HostKeyError unless `key` is recorded for `target`."""
    entries = tuple(entries)
    if any(entry.revoked and entry.key == key for entry in entries):
        raise HostKeyError(
            f"the host key of {target.label} ({key.type} {key.fingerprint}) is marked @revoked",
            machine=target.id,
            state="nothing was sent to it",
            next_command="find out who runs that machine now; do not connect to it",
        )
    valid = [entry for entry in entries if not entry.revoked]
    if any(entry.key == key for entry in valid):
        return
    if not valid:
        raise HostKeyError(
            f"the host key of {target.label} is not known ({key.type} {key.fingerprint})",
            machine=target.id,
            state="nothing was sent to it",
            next_command=f"fleetctl trust {target.id}",
        )
    raise _changed(target, key, valid)


def _changed(target: SshTarget, key: HostKey, recorded: list[Entry]) -> HostKeyError:
    old = next((entry for entry in recorded if entry.key.type == key.type), recorded[0])
    name = target.host_key_name
    foreign = [entry for entry in recorded if not entry.where.startswith(f"{target.trust_file}:")]
    forget = f"ssh-keygen -f {foreign[0].where.rpartition(':')[0]} -R '{name}' && " if foreign else ""
    return HostKeyError(
        f"the host key of {target.label} has CHANGED: recorded {old.key.type} {old.key.fingerprint} ({old.where}), "
        f"now {key.type} {key.fingerprint}. Either the machine was installed anew or somebody is in between",
        machine=target.id,
        state="nothing was sent to it",
        next_command="compare on the machine's own console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub; "
        f"only if it is the new one: {forget}fleetctl trust {target.id}",
    )


def preferred(entries: Iterable[Entry], offered: Iterable[str]) -> list[str]:
    """Host key algorithms in the order to ask for: those of known keys first, so that a known ed25519 key is not
    missed because the server would rather show its RSA key."""
    types = {entry.key.type for entry in entries if not entry.revoked}
    wanted = {name for kind in types for name in (RSA_ALGORITHMS if kind == "ssh-rsa" else (kind,))}
    return sorted(offered, key=lambda name: name not in wanted)


def trust(target: SshTarget, key: HostKey, file: Path | None = None, *, expected: str | None = None) -> None:
    """Record `key`, which a person has been shown, for `target` in the fleet's known_hosts file (0600).

    Takes the place of keys recorded there for the same name. The file is replaced whole under a lock on its folder:
    no reader sees half a line, and two terminals at once both succeed. `expected` is a fingerprint from elsewhere;
    HostKeyError when the key has another.
    """
    if expected is not None and not hmac.compare_digest(expected.rstrip("=").encode(), key.fingerprint.encode()):
        raise HostKeyError(
            f"{target.label} shows {key.fingerprint}, not the expected {expected}",
            machine=target.id,
            state="nothing was recorded",
            next_command="ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub  on the machine's own console",
        )
    file = file or target.trust_file
    if file is None:
        raise HostKeyError("no fleet file to record the host key in", machine=target.id)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(file.parent):
        lines = _lines_of_others(file, target.host_key_name)
        lines.append(f"{target.host_key_name} {key.type} {key.base64}")
        _replace(file, "".join(f"{line}\n" for line in lines))


def _entries(file: Path, name: str) -> Iterator[Entry]:
    for number, (_, fields) in enumerate(_parsed(file), 1):
        if fields is None:
            continue
        marker, names, kind, blob = fields
        if marker != "@cert-authority" and _matches(names, name) and _is_key(kind, blob):
            yield Entry(HostKey(kind, blob), f"{file}:{number}", revoked=marker == "@revoked")


def _lines_of_others(file: Path, name: str) -> list[str]:
    """The lines that say nothing about `name`, comments and marked lines among them."""
    return [line for line, fields in _parsed(file) if fields is None or fields[0] or not _matches(fields[1], name)]


def _parsed(file: Path) -> list[tuple[str, tuple[str, str, str, str] | None]]:
    """The lines of a known_hosts file with marker, names, type and key; None for a line that is none."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    parsed: list[tuple[str, tuple[str, str, str, str] | None]] = []
    for line in text.splitlines():
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        fields = (marker, words[0], words[1], words[2]) if len(words) >= 3 and words[0][0] != "#" else None
        parsed.append((line, fields))
    return parsed


def _matches(names: str, name: str) -> bool:
    """Whether the first field of a line names this server: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT."""
    if names.startswith("|1|"):
        return _hash_matches(names, name)
    found = False
    for pattern in names.lower().split(","):
        if fnmatch.fnmatchcase(name, _literal_brackets(pattern.removeprefix("!"))):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _literal_brackets(pattern: str) -> str:
    """OpenSSH patterns know * and ? only; the brackets of `[host]:port` stand for themselves."""
    return pattern.replace("[", "[[]")


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        _, _, salt, digest = hashed.split("|")
        expected = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(expected, base64.b64decode(digest))
    except (ValueError, binascii.Error):
        return False


def _is_key(kind: str, blob: str) -> bool:
    """Whether the base64 is a key of the type the line says."""
    try:
        raw = base64.b64decode(blob, validate=True)
    except (ValueError, binascii.Error):
        return False
    return raw[4 : 4 + int.from_bytes(raw[:4], "big")] == kind.encode()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(file: Path, text: str) -> None:
    """Write `text` as the whole of `file`, mode 0600, or leave the old one as it was."""
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as temporary:
            temporary.write(text)
            temporary.flush()
            os.fsync(temporary.fileno())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
