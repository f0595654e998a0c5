"""What a lab needs to be logged into: one user key, one host key a machine, one API key. Made anew with every lab."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


@dataclass(frozen=True)
class KeyPair:
    """An ed25519 pair in OpenSSH's formats; `public` is `ssh-ed25519 AAAA...` without a comment."""

    private: bytes
    public: str


def key_pair() -> KeyPair:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return KeyPair(private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())


def api_key() -> str:
    return f"sk-lab-{secrets.token_hex(20)}"


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read, at every moment of its life."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def known_hosts(entries: dict[int, tuple[int, str, str]]) -> str:
    """The known_hosts file of machines given as id -> (published port, cluster address, public key).

    The cluster address is there for whoever comes through a jump host.
    """
    lines = []
    for port, address, public in entries.values():
        lines += [f"[127.0.0.1]:{port} {public}", f"{address} {public}"]
    return "".join(f"{line}\n" for line in lines)
