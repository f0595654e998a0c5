"""The mode without Lua: one nginx.conf that holds the backends, for a host whose nginx has no Lua module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from fleetctl.balancer import config
from fleetctl.balancer.peers import Peer
from fleetctl.balancer.peers import render as render_peers
from fleetctl.balancer.peers import version as peers_version
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Affinity, Balancer

LIMITS = (
    "every change of the backends is a reload: requests on reused client connections can be lost at that moment",
    "sessions are spread by nginx's own consistent hash, not by the report's md5: existing sessions move once",
    "no count of requests in flight: a drain can only wait its whole time",
    "a frozen backend keeps getting its share: there are no active probes and no token probe",
    "a silent host is not retried, because nginx cannot tell it from a slow answer",
    "no load bound, no 429, no metrics; /health cannot say how many backends live; CORS for all origins",
)
"""What this mode cannot do, said at apply and in docs/balancer.md."""

ERRORS = (
    (404, "No such path here."),
    (413, "The request body is larger than this server takes."),
    (500, "The balancer failed."),
    (502, "No backend answered."),
    (503, "No backend can take this request now; try again later."),
    (504, "The backend did not answer in time."),
)


def render(
    fleet: Fleet, flavour: config.Flavour, peers: Sequence[Peer], places: config.Places | None = None
) -> dict[str, str]:
    """The one file. Its /state is fixed text: config and peers version as loaded, inflight null."""
    where = places or config.Places.of(fleet)
    text = config.template(
        "nginx-plain.conf.j2",
        fleet,
        flavour,
        where,
        peers=peers,
        least_conn=fleet.inventory.balancer.affinity is Affinity.LEAST_CONN,
        key_maps=_key_maps(fleet.inventory.balancer),
        route_key="$key_0",
        errors=ERRORS,
        machines=",".join(f'"{machine}"' for machine in _machines(peers)),
        state="@state@",
    )
    identity = hashlib.sha256(text.encode()).hexdigest()[:32]
    return {"nginx.conf": text.replace("@state@", _state(identity, peers))}


def loaded_as(files: dict[str, str]) -> str:
    """What /state answers as `config` once these files are loaded."""
    start = files["nginx.conf"].index('"config":"') + len('"config":"')
    return files["nginx.conf"][start : start + 32]


def _state(identity: str, peers: Sequence[Peer]) -> str:
    rows = [{"id": peer.id, "address": peer.address, "state": peer.state.value, "inflight": None} for peer in peers]
    document = {"version": peers_version(render_peers(peers)), "config": identity, "peers": rows}
    return json.dumps(document, separators=(",", ":"))


def _machines(peers: Sequence[Peer]) -> list[str]:
    return list(dict.fromkeys(peer.id.partition("/")[0] for peer in peers))


def _key_maps(balancer: Balancer) -> list[tuple[str, str, str]]:
    """nginx maps that chain the sources of the key: (variable, source, what to take when the source is empty)."""
    sources: list[str] = []
    for kind in (*balancer.key_order, "client"):
        if kind == "session":
            sources += [f"$http_{header.lower().replace('-', '_')}" for header in balancer.session_headers]
        else:
            sources.append(f"$key_{kind}")
    return [
        (f"$key_{number}", source, f"$key_{number + 1}" if number + 1 < len(sources) else "$remote_addr")
        for number, source in enumerate(sources)
    ]
