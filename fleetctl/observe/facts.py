"""What was seen on a machine in one round trip. What could not be read is None, never 0 and never "ok"."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from fleetctl.balancer.peers import Peer
from fleetctl.balancer.peers import PeerState as WantedState
from fleetctl.commands.docker import Topology
from fleetctl.observe.lock import LockState
from fleetctl.observe.npu_smi import NpuReport


@dataclass(frozen=True)
class Unit:
    active: str
    sub: str
    enabled: str
    result: str
    restarts: int
    fragment: str
    dropins: tuple[str, ...] = ()

    @property
    def parked(self) -> bool:
        """systemd gave up after too many starts."""
        return self.active == "failed" and self.result in ("start-limit-hit", "exit-code") and self.sub == "failed"


@dataclass(frozen=True)
class Container:
    name: str
    id: str
    image_id: str
    state: str
    labels: dict[str, str]
    ports: tuple[int, ...]
    created: int | None = None

    def label(self, key: str) -> str | None:
        return self.labels.get(f"fleetctl.{key}")


@dataclass(frozen=True)
class Image:
    """An image by its content: the id differs between Docker's storage backends, layers and config do not.

    `digests`: what registries call it, known of what was pulled.
    """

    id: str
    content: str
    size: int
    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listener:
    address: str
    port: int
    pid: int | None
    process: str | None
    owner: str | None


@dataclass(frozen=True)
class Health:
    """`accepts_key`: whether /v1/models took the key of the machine's file; None when it did not say."""

    http: int | None
    model: str | None
    accepts_key: bool | None = None


@dataclass(frozen=True)
class Disk:
    """Bytes in all and free, inodes free (None: the file system has no limit)."""

    path: str
    device: str
    free: int
    size: int
    inodes: int | None = None


@dataclass(frozen=True)
class Stopped:
    """A mark that somebody, or the watchdog, left about an instance."""

    who: str
    when: str
    reason: str


@dataclass(frozen=True)
class ModelState:
    """Of the model's folder: `listing` is the hash of names, sizes and times; `manifest` that of the verified bytes.

    `size` in bytes; `arrived`: bytes that an unfinished copy has brought; `since`: when they were verified, by the
    machine's clock. `versions` are the folders kept beside it, oldest first, and `version` the one in use.
    """

    present: bool
    listing: str | None
    manifest: str | None
    verified_listing: str | None
    size: int | None
    arrived: int = 0
    since: int | None = None
    version: str | None = None
    versions: tuple[str, ...] = ()

    @property
    def verified(self) -> str | None:
        """The manifest these files were checked against, None when they changed since or never were."""
        return self.manifest if self.listing and self.listing == self.verified_listing else None


@dataclass(frozen=True)
class PeerState:
    id: str
    address: str
    state: str
    inflight: int | None
    health: str | None = None
    """ok, suspect, down or ejected, as the balancer sees it; None when it does not look (without Lua)"""
    key: str | None = None
    """old or new while there are two API keys: the one that its engine is sent"""


@dataclass(frozen=True)
class BalancerState:
    """The balancer's own words (state document), not what its files say."""

    version: str
    config: str
    peers: tuple[PeerState, ...]
    key: str | None = None
    """The sid (routing.sid) of the API key that it has read, and of the one that this replaces"""
    old_key: str | None = None


@dataclass(frozen=True)
class JobState:
    """A transient unit that somebody started: `state` is running, done or failed; bytes done and in all, or None."""

    state: str
    done: int | None
    total: int | None
    words: str


@dataclass(frozen=True)
class Facts:
    """One machine. `failed` names the parts that could not be read, with the reason.

    `parked` and `doubtful`: instances that the watchdog gave up, or would restart when they are idle. `unit_texts`:
    the units of instances, by path. `own_balancers`: units of its balancer. `own_units`: instance ids by the names
    of units whose header says they are this fleet's, also of instances that the inventory no longer lists. `jobs`:
    transient units of this fleet with their sub-state (running, exited, failed), `progress` what they say.
    `brought`: ids of images that fleetctl brought, oldest first; `brought_as`: with their names. `transfer_tags`:
    transfers that may still log in here, such as `qwen38-67-model`. `release` is the newest that it knows, `releases`
    those that proved good, `broken_releases` why a file of theirs is none, by path. `key_mode`: mode and owner's number
    of the API key's file, such as `600 0`.
    `starts`: seconds that the last starts of engines took here, until the gate was content.
    `experiment`: what `bench ab` changed here and has not put back. `link`: Mbit/s of the interface towards the source.
    `balancer_files`: those of the balancer that are not as they were applied, `changed` or `missing` by path; None when
    it is not known.
    """

    machine: int
    units: dict[str, Unit] = field(default_factory=dict)
    containers: tuple[Container, ...] | None = None
    image: Image | None = None
    files: dict[str, str] = field(default_factory=dict)
    health: dict[int, Health] = field(default_factory=dict)
    npu: NpuReport | None = None
    listeners: tuple[Listener, ...] | None = None
    disks: dict[str, Disk] = field(default_factory=dict)
    model: ModelState | None = None
    topology: Topology = Topology()
    missing_paths: tuple[str, ...] = ()
    missing_tools: tuple[str, ...] = ()
    driver: str | None = None
    docker: dict[str, Any] | None = None
    stopped: dict[str, Stopped] = field(default_factory=dict)
    parked: dict[str, Stopped] = field(default_factory=dict)
    doubtful: dict[str, Stopped] = field(default_factory=dict)
    unit_texts: dict[str, str] = field(default_factory=dict)
    release: dict[str, Any] | None = None
    releases: tuple[dict[str, Any], ...] = ()
    broken_releases: dict[str, str] = field(default_factory=dict)
    starts: tuple[float, ...] = ()
    key_mode: str | None = None
    experiment: dict[str, Any] | None = None
    jobs: dict[str, str] = field(default_factory=dict)
    progress: dict[str, JobState] = field(default_factory=dict)
    brought: tuple[str, ...] = ()
    brought_as: tuple[tuple[str, str], ...] = ()
    peers: str | None = None
    balancer: BalancerState | None = None
    balancer_files: dict[str, str] | None = None
    flavour: str | None = None
    host_keys: tuple[str, ...] = ()
    unreachable_peers: tuple[str, ...] = ()
    npu_owners: dict[int, str] = field(default_factory=dict)
    foreign_units: tuple[str, ...] = ()
    own_units: dict[str, str] = field(default_factory=dict)
    own_balancers: tuple[str, ...] = ()
    transfer_tags: tuple[str, ...] = ()
    now: int | None = None
    link: int | None = None
    lock: LockState | None = None
    model_config: str | None = None
    model_described: bool | None = None
    failed: dict[str, str] = field(default_factory=dict)

    def container_of(self, owner: str | None) -> Container | None:
        """The container that an owner such as `container 0123456789ab` names."""
        if owner is None or not owner.startswith("container "):
            return None
        prefix = owner.removeprefix("container ")
        return next((c for c in self.containers or () if c.id.startswith(prefix)), None)

    def container(self, name: str) -> Container | None:
        return next((c for c in self.containers or () if c.name == name), None)


def live_table(state: BalancerState | None) -> tuple[Peer, ...]:
    """The peers that the running balancer has loaded."""
    known = {one.value for one in WantedState}
    found = [peer for peer in (state.peers if state else ()) if peer.state in known]
    return tuple(Peer(peer.id, peer.address, state=WantedState(peer.state)) for peer in found)


HALF_A_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str) -> Any:
    """JSON or None: half an answer is no answer. Half a character in it (a lone surrogate) is U+FFFD: nobody could
    print it."""
    try:
        document = json.loads(text)
        if HALF_A_CHARACTER.search(text):
            whole = json.dumps(document, ensure_ascii=False).encode("utf-16", "surrogatepass")
            document = json.loads(whole.decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        return None
    return document


def served_models(document: Any) -> tuple[str, ...]:
    """The names that /v1/models lists; none for a document of any other form, such as a stranger's on that port."""
    listed = document.get("data") if isinstance(document, dict) else None
    entries = listed if isinstance(listed, list) else ()
    return tuple(str(entry["id"]) for entry in entries if isinstance(entry, dict) and entry.get("id"))
