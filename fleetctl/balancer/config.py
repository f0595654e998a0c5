"""The balancer's files for one machine: a small nginx.conf, static Lua modules, and the settings they read.

Only data is generated. The backends are not here: they are the peers file, which needs no reload.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from fleetctl import resources
from fleetctl.fleet.fleet import Fleet

LUA_MODULES = (
    "access",
    "balance",
    "choice",
    "errors",
    "failure",
    "finish",
    "health",
    "http",
    "inflight",
    "json",
    "keys",
    "lease",
    "limits",
    "metrics",
    "peers",
    "probe",
    "routing",
    "secret",
    "start",
    "state",
)
DEFAULT_MAX_NUM_SEQS = 256
"""vLLM's own default of --max-num-seqs (facts/vllm-0.32/serve-flags.tsv)."""

HEADER_LIMIT = 8704
"""Bytes of one header line: a session id of 8 KiB fits, one of 9 KB is refused with 431."""


@dataclass(frozen=True)
class Flavour:
    """One way in which nginx with Lua is installed. Paths are those of the machine."""

    name: str
    binary: str
    modules: tuple[str, ...] = ()
    lua_path: tuple[str, ...] = ()


FLAVOURS: Mapping[str, Flavour] = {
    "openresty": Flavour(
        name="openresty",
        binary="/usr/local/openresty/nginx/sbin/nginx",
        lua_path=("/usr/local/openresty/lualib/?.lua", "/usr/local/openresty/site/lualib/?.lua"),
    ),
    "distribution": Flavour(
        name="distribution",
        binary="/usr/sbin/nginx",
        modules=(
            "load_module /usr/lib/nginx/modules/ndk_http_module.so;",
            "load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;",
        ),
        lua_path=("/usr/share/lua/5.1/?.lua",),
    ),
}
PLAIN = Flavour(name="plain", binary="/usr/sbin/nginx")
"""An nginx without the Lua module: only `balancer.mode: plain` takes it (`plain.render`)."""

INSTALL_HINT = "apt-get install --no-remove nginx-light libnginx-mod-http-lua"


def detect_script() -> str:
    """POSIX sh that prints the name of the best flavour this machine has: a key of FLAVOURS, `plain`, or nothing."""
    openresty, distribution = FLAVOURS["openresty"], FLAVOURS["distribution"]
    modules = [line.split()[1].rstrip(";") for line in distribution.modules]
    tests = " && ".join(f"[ -f {module} ]" for module in modules)
    return (
        f"if [ -x {openresty.binary} ]; then echo openresty\n"
        f"elif [ -x {distribution.binary} ] && {tests}; then echo distribution\n"
        f"elif [ -x {PLAIN.binary} ]; then echo plain\n"
        "fi\n"
    )


@dataclass(frozen=True)
class Places:
    """Where the balancer's files are on the machine, and where it listens (`address:port`)."""

    folder: PurePosixPath
    logs: PurePosixPath
    pid: PurePosixPath
    listen: str
    state_listen: str
    api_key: PurePosixPath

    @staticmethod
    def of(fleet: Fleet) -> Places:
        """The places of a fleet in service."""
        return Places(
            folder=PurePosixPath("/etc/fleetctl") / fleet.name / "balancer",
            logs=PurePosixPath("/var/log/fleetctl") / fleet.name,
            pid=PurePosixPath("/run/fleetctl") / f"{fleet.name}-balancer.pid",
            listen=f"{fleet.inventory.balancer.listen}",
            state_listen=f"127.0.0.1:{fleet.inventory.balancer.state_listen}",
            api_key=PurePosixPath("/etc/fleetctl") / fleet.name / "api-key",
        )


def render(fleet: Fleet, flavour: Flavour, places: Places | None = None) -> dict[str, str]:
    """Every file of the balancer but the peers file, by path below its folder.

    The hash that `/state` answers as `config` is `config_hash` of the result.
    """
    where, beside = places or Places.of(fleet), fleet.path.parent
    files = {f"lua/{name}.lua": resources.read("units", f"lua/{name}.lua", beside) for name in LUA_MODULES}
    files["nginx.conf"] = template("nginx.conf.j2", fleet, flavour, where)
    settings = _settings(fleet, where)
    files["settings.lua"] = _lua_settings(settings)
    files["settings.lua"] = _lua_settings({**settings, "config": config_hash(files)})
    return files


def config_hash(files: Mapping[str, str]) -> str:
    """The identity of a configuration: 32 hex digits over all its files, whatever hash they carry inside."""
    digest = hashlib.sha256()
    for path in sorted(files):
        text = "".join(line for line in files[path].splitlines(keepends=True) if not line.startswith(_HASH_LINE))
        digest.update(f"{path}\0{len(text)}\0{text}".encode())
    return digest.hexdigest()[:32]


_HASH_LINE = "    config = "


def max_num_seqs(fleet: Fleet) -> int:
    """Requests that one instance computes at once."""
    value = fleet.engine.get("max-num-seqs", fleet.engine.get("max_num_seqs"))
    return value if isinstance(value, int) and value > 0 else DEFAULT_MAX_NUM_SEQS


def workers(fleet: Fleet) -> int:
    """Worker processes: one per eight instances, 2 to 8. One worker carries 20,000 requests/s; nginx's `auto`
    would start one per core of a 192-core host."""
    return fleet.inventory.balancer.workers or min(8, max(2, math.ceil(len(fleet.instances) / 8)))


def connections(fleet: Fleet) -> int:
    """worker_connections: two for each request the fleet may hold, in any one worker, plus idle clients."""
    factor = max(1.0, fleet.inventory.balancer.queue_factor or 4.0)
    held = 2 * len(fleet.instances) * max_num_seqs(fleet) * factor
    return min(65536, max(4096, 1024 * math.ceil(held / 1024) + 1024))


def open_files(fleet: Fleet) -> int:
    """LimitNOFILE of the unit: every connection of a worker, a file for each body on disk, and its own files."""
    return connections(fleet) * 2 + 1024


def keepalive_timeout(fleet: Fleet) -> int:
    """Seconds an idle connection to a backend is kept: always shorter than the backend's own, which is 5 s
    by default, so that no request is sent into a connection that the other side is closing."""
    value = fleet.env.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5")
    theirs = int(value) if str(value).isdigit() else 5
    return max(1, min(60, theirs - 1))


def body_limit(fleet: Fleet) -> str:
    """client_max_body_size; nginx knows the same units in lower case."""
    return fleet.inventory.balancer.body_limit.lower()


def logrotate(fleet: Fleet) -> str:
    """A logrotate snippet for /etc/logrotate.d: daily or at 200 MB, 14 kept, the master reopens its logs."""
    where = Places.of(fleet)
    return (
        f"{where.logs}/*.log {{\n"
        "    daily\n    maxsize 200M\n    rotate 14\n    missingok\n    notifempty\n"
        "    compress\n    delaycompress\n    sharedscripts\n"
        "    postrotate\n"
        f'        if [ -s {where.pid} ]; then kill -USR1 "$(cat {where.pid})"; fi\n'
        "    endscript\n}\n"
    )


def _settings(fleet: Fleet, places: Places) -> dict[str, Any]:
    balancer = fleet.inventory.balancer
    return {
        "peers": f"{places.folder}/peers",
        "affinity": balancer.affinity.value,
        "session_headers": list(balancer.session_headers),
        "key_order": list(balancer.key_order),
        "load_floor": balancer.load_floor or max_num_seqs(fleet),
        "load_factor": balancer.load_factor,
        "max_num_seqs": max_num_seqs(fleet),
        "queue_factor": balancer.queue_factor,
        "requests_per_second": balancer.requests_per_second,
        "burst": balancer.burst,
        "deep_probe": balancer.deep_probe,
        "model": fleet.inventory.model.name,
        "api_key": str(places.api_key),
        "since": str(places.api_key.parent / "balancer-since"),
    }


def _lua_settings(settings: Mapping[str, Any]) -> str:
    lines = [f"    {name} = {lua_literal(value)},\n" for name, value in sorted(settings.items())]
    return f"-- Data, written by fleetctl.\nreturn {{\n{''.join(lines)}}}\n"


def lua_literal(value: Any) -> str:
    """A Lua 5.1 literal of a string, number, bool, None or list; strings hold any byte."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"{{ {', '.join(map(lua_literal, value))} }}"
    safe = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03d}" for byte in str(value).encode())
    return f'"{"".join(safe)}"'


def template(name: str, fleet: Fleet, flavour: Flavour, places: Places, **more: Any) -> str:
    """One template of units/ with everything that both modes of the balancer need."""
    # jinja2 takes 50 ms to import; `status` never renders.
    from jinja2 import Environment, StrictUndefined

    balancer = fleet.inventory.balancer
    environment = Environment(  # noqa: S701 this is no HTML
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(resources.read("units", name, fleet.path.parent)).render(
        modules=flavour.modules,
        lua_path=";".join(flavour.lua_path),
        folder=places.folder,
        logs=places.logs,
        pid=places.pid,
        listen=places.listen,
        state_listen=places.state_listen,
        workers=workers(fleet),
        connections=connections(fleet),
        open_files=open_files(fleet),
        header_limit=HEADER_LIMIT,
        body_limit=body_limit(fleet),
        keepalive=max(32, 4 * len(fleet.instances)),
        keepalive_timeout=keepalive_timeout(fleet),
        connect_timeout=_seconds(balancer.connect_timeout),
        read_timeout=_seconds(balancer.read_timeout),
        paths=balancer.paths,
        origins=balancer.cors_origins,
        tls=balancer.tls,
        trusted_proxies=balancer.trusted_proxies,
        underscores=any("_" in header for header in balancer.session_headers),
        **more,
    )


def _seconds(value: float) -> str:
    """nginx takes whole milliseconds."""
    return f"{max(1, round(value * 1000))}ms"
