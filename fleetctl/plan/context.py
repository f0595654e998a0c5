"""What a step needs to know to say which operations it wants: desired and observed state. Pure."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath

from fleetctl.balancer.peers import Peer, PeerState, of_instance
from fleetctl.commands import paths
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.observe.facts import Facts
from fleetctl.plan import desired
from fleetctl.plan.operation import EditPeers
from fleetctl.plan.release import Release


@dataclass(frozen=True)
class Context:
    """`machines`: those the command is about, in joining order. `peers`: the table as it will be at this point.

    `current` is the release that the machines know, `release` the one that this command rolls out.
    `peers_broken`: the table is the running balancer's, the file has to be written again. `canary`: the instance that
    is changed first, `max_unavailable`: in place of the inventory's. `purge`: what fleetctl brought to a machine leaves
    with it. `adopt`: what was built by hand is taken over. `key_hash` and `key_sid` (routing.sid) are of the API key
    that the fleet is to have.
    """

    fleet: Fleet
    facts: Mapping[int, Facts]
    machines: tuple[int, ...]
    key_hash: str
    stamp: str
    release: Release | None = None
    current: Release | None = None
    users: Mapping[int, str] = field(default_factory=dict)
    peers: tuple[Peer, ...] = ()
    peers_broken: bool = False
    canary: str | None = None
    max_unavailable: str | None = None
    purge: bool = False
    adopt: bool = False
    key_sid: str = ""

    @property
    def balancer(self) -> int:
        return self.fleet.inventory.balancer.machine

    @property
    def source(self) -> int:
        return self.fleet.inventory.source

    @property
    def state_url(self) -> str:
        return f"http://127.0.0.1:{self.fleet.inventory.balancer.state_listen}/state"

    @property
    def listen_url(self) -> str:
        return f"http://127.0.0.1:{self.fleet.inventory.balancer.listen}"

    @property
    def past_starts(self) -> list[float]:
        """Seconds that engines took to start on these machines, the last times."""
        return [seconds for m in self.machines if m in self.facts for seconds in self.facts[m].starts]

    @property
    def settled(self) -> bool:
        """The machines know a release that asks for the same and proved good on them: no earlier run was cut short,
        and no `bench ab` left its arms behind."""
        current = self.current
        return (
            current is not None
            and current.outcome == "good"
            and current.overrides == self.fleet.overrides
            and not set(current.left_out) & set(self.machines)
            and all((self.facts[m].release or {}).get("number") == current.number for m in self.machines)
            and all(self.facts[m].experiment is None for m in self.machines)
        )

    def new_image(self, machine: int) -> bool:
        """Whether the machine lacks the image or has another content than the source."""
        wanted, seen = self.facts[self.source].image, self.facts[machine].image
        return seen is None or (wanted is not None and seen.content != wanted.content)

    def new_model(self, machine: int) -> bool:
        """Whether the machine has no copy that was checked against the source's manifest and is as it was then."""
        source, seen = self.facts[self.source].model, self.facts[machine].model
        if machine == self.source or self.fleet.inventory.model.shared or source is None:
            return False
        return seen is None or seen.verified is None or seen.verified != source.verified

    def _changed_in_place(self, machine: int) -> bool:
        """The files that the machine serves from are the source's own, and not those that were checked last."""
        own = machine == self.source or self.fleet.inventory.model.shared
        source = self.facts[self.source].model
        return own and source is not None and source.present and source.verified is None

    def _new_key(self, machine: int) -> bool:
        """The machine's key file holds another key: engines read it once, when they start."""
        return self.facts[machine].files.get(str(paths.api_key(self.fleet))) != self.key_hash

    def key_of(self, path: PurePosixPath) -> str | None:
        """The hash of a key file of the balancer's machine; None when there is none."""
        return self.facts[self.balancer].files.get(str(path))

    @property
    def changes_key(self) -> bool:
        """The balancer's machine has another key than the fleet is to have."""
        return self.key_of(paths.api_key(self.fleet)) not in (None, self.key_hash)

    @property
    def two_keys(self) -> bool:
        """The balancer takes two keys, or will before anything is restarted."""
        kept = self.key_of(paths.old_key(self.fleet)) not in (None, self.key_hash)
        live = self.facts[self.balancer].balancer
        return not self.plain and (kept or self.changes_key or (live is not None and live.old_key is not None))

    @property
    def key_in_force(self) -> bool:
        """What the running balancer has read is what its key files say; True where it does not say."""
        live = self.facts[self.balancer].balancer
        if live is None or live.key is None or self.changes_key:
            return True
        kept = self.key_of(paths.old_key(self.fleet)) not in (None, self.key_hash)
        return live.key == self.key_sid and (live.old_key is not None) == kept

    @property
    def third_key(self) -> bool:
        """A change from one key to another is half done, and the secret gives neither of the two."""
        found = self.key_of(paths.api_key(self.fleet))
        return self.changes_key and self.key_of(paths.old_key(self.fleet)) not in (None, self.key_hash, found)

    @property
    def table_elsewhere(self) -> bool:
        """What serves is in no table that is known here: its balancer is, or was, another machine's."""
        good = self.current is not None and self.current.outcome == "good"
        return not self.peers and self.facts[self.balancer].balancer is None and good

    @cached_property
    def comparisons(self) -> dict[str, desired.Comparison]:
        """Every instance of the command's machines, by id."""
        return {
            instance.id: desired.compare(
                self.fleet,
                instance,
                self.facts[instance.machine],
                new_image=self.new_image(instance.machine),
                new_key=self._new_key(instance.machine),
                new_model=self.new_model(instance.machine) or self._changed_in_place(instance.machine),
            )
            for machine in self.machines
            for instance in self.fleet.on(machine)
        }

    @property
    def plain(self) -> bool:
        """The balancer is an nginx without Lua: its peers are in its configuration."""
        return self.fleet.inventory.balancer.mode == "plain"

    def edit(self, change: Callable[[tuple[Peer, ...]], tuple[Peer, ...]]) -> EditPeers:
        path = paths.peers(self.fleet)
        if not self.plain:
            return EditPeers(change, path, self.state_url)

        def configuration(peers: tuple[Peer, ...]) -> bytes:
            wanted = desired.balancer(self.fleet, self.facts[self.balancer], peers)
            if wanted is None:
                return b""
            return archive({**wanted.files, desired.APPLIED: desired.applied(wanted.folder, wanted.files)})

        unit = f"{self.fleet.inventory.balancer.unit}.service"
        return EditPeers(change, path, self.state_url, unit, str(paths.applied(self.fleet)), configuration)


def archive(files: Mapping[str, str]) -> bytes:
    """A tar of text files, the same bytes for the same content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in sorted(files.items()):
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _with_strangers(table: list[Peer], before: tuple[Peer, ...], rank: Mapping[str, int]) -> tuple[Peer, ...]:
    """Peers that the inventory no longer lists stay behind whom they followed, until a rollout drains them.

    One whose address another has taken over is gone.
    """
    taken = {peer.address for peer in table}
    follows: dict[str | None, list[Peer]] = {}
    last: str | None = None
    for peer in before:
        if peer.id in rank:
            last = peer.id
        elif peer.address not in taken:
            follows.setdefault(last, []).append(peer)
    behind = (one for peer in table for one in (peer, *follows.get(peer.id, ())))
    return (*follows.get(None, ()), *behind)


def set_state(
    fleet: Fleet, which: tuple[Instance, ...], state: PeerState, *, by_hand: bool = False
) -> Callable[[tuple[Peer, ...]], tuple[Peer, ...]]:
    """An edit that gives instances a state. Those that are not in the table yet take their place in its order.

    What a person drained is drained or taken back only `by_hand`, also when it was drained while a plan ran.
    """
    wanted = {instance.id: of_instance(fleet, instance, state) for instance in which}
    rank = {instance.id: position for position, instance in enumerate(fleet.instances)}

    def edit(peers: tuple[Peer, ...]) -> tuple[Peer, ...]:
        kept = {peer.id: peer for peer in peers if peer.id in rank}
        held = {id for id, peer in kept.items() if peer.state is PeerState.HELD}
        stays = held if state in (PeerState.UP, PeerState.DRAIN) and not by_hand else set()
        merged = {
            **kept,
            **{id: replace(peer, state=PeerState.HELD) if id in stays else peer for id, peer in wanted.items()},
        }
        table = sorted(merged.values(), key=lambda peer: rank[peer.id])
        return _with_strangers(table, peers, rank)

    return edit
