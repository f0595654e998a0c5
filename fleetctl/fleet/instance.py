"""One engine of the fleet: where it is, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Instance:
    """One vLLM server: `67/2` is machine 67, index 2."""

    machine: int
    index: int
    name: str
    host: str
    port: int
    devices: tuple[int, ...]

    @property
    def id(self) -> str:
        return f"{self.machine}/{self.index}"

    @property
    def address(self) -> str:
        """`host:port` in the cluster network, an IPv6 host in brackets; what X-Upstream-Addr shows."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
