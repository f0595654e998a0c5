"""What a person may write in inventory.yaml, typed (design, section 4).

Pydantic is used here because this is where people's files come in; everything behind it works on the
frozen values below. Rules that need more than one key live in `allocation` and `lint`, file positions in
`load`, and the wording of errors in `explain`. The descriptions are docs/inventory.md.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

# Flags that the program computes: what a person should write instead.
COMPUTED_FLAGS = {
    "host": "the program computes this flag; leave it out",
    "port": "the program computes this flag; write instances.port",
    "model": "the program computes this flag; write model.path",
    "model-tag": "the program computes this flag; write model.path",
    "served-model-name": "the program computes this flag; write model.name",
    "speculative-config": "the program computes this flag; write speculative.method and speculative.tokens",
    "spec-method": "the program computes this flag; write speculative.method",
    "spec-tokens": "the program computes this flag; write speculative.tokens",
    "api-key": "a key never stands in the inventory or on a command line; write secrets.api_key",
    "hf-token": "a token never stands in the inventory or on a command line; use a local model.path",
    "config": "flags from a second file would escape the lint; write them under engine",
    "uds": "the balancer reaches instances over TCP; leave it out",
    "headless": "an instance serves HTTP itself; leave it out",
    "grpc": "an instance serves HTTP; leave it out",
}
FLAG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")
SECRET_VARIABLES = frozenset({"VLLM_API_KEY", "OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
_LOOKS_SECRET = re.compile(r"^(sk|hf|ghp|glpat|xox[abp])[-_][A-Za-z0-9_-]{6,}$")


def looks_secret(value: str) -> bool:
    """Whether a text has the shape of a key that somebody pasted."""
    return _LOOKS_SECRET.match(value) is not None


def _address(value: str) -> str:
    import ipaddress

    try:
        found = ipaddress.ip_address(value)
    except ValueError:
        raise ValueError(f'expected an IP address of the cluster network, got "{value}"') from None
    if found.is_loopback:
        raise ValueError(f"{value} is a loopback address: no other machine reaches a backend there")
    if found.is_unspecified:
        raise ValueError(f"{value} is no machine's address: write the one of the cluster network")
    if found.is_multicast or value == "255.255.255.255" or getattr(found, "scope_id", None):
        raise ValueError(f"{value} cannot be the address of a machine in the cluster network")
    return str(found)


def _flag_name(name: str) -> str:
    plain = name.lstrip("-").replace("_", "-")
    if name.startswith("-"):
        raise ValueError(f'write the flag without the leading dashes: "{name.lstrip("-")}"')
    if not FLAG_NAME.fullmatch(name):
        raise ValueError(f'"{name}" cannot be the name of a vllm serve flag')
    if plain.removeprefix("no-") in COMPUTED_FLAGS:
        raise ValueError(COMPUTED_FLAGS[plain.removeprefix("no-")])
    return name


def _one_spelling(engine: dict[str, Any]) -> dict[str, Any]:
    seen: dict[str, str] = {}
    for name in engine:
        plain = name.replace("_", "-").removeprefix("no-")
        if plain in seen:
            raise ValueError(f"{seen[plain]} and {name} are the same flag")
        seen[plain] = name
    return engine


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("not the name of an environment variable")
    if name in SECRET_VARIABLES:
        raise ValueError("docker inspect shows this variable; a key is given by secrets.api_key only")
    return name


def _one_line(value: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError("must be one line without control characters")
    return value


def _path(value: PurePosixPath) -> PurePosixPath:
    text = str(value)
    if not value.is_absolute() or ".." in value.parts or text == "/":
        raise ValueError(f'expected an absolute path on the machine, got "{text}"')
    if re.search(r"[\x00-\x1f\x7f,:\"]", text):
        raise ValueError("a path must not hold a comma, a colon, a quote or a control character (docker --mount)")
    return value


def _reference(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", value):
        raise ValueError(f'"{value}" is not an image reference such as quay.io/ascend/vllm-ascend:v0.23.0')
    return value


def _secret_source(value: str) -> str:
    if looks_secret(value):
        raise ValueError("this looks like the secret itself; write where it is, never its value")
    return _one_line(value)


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


NAME = r"^[a-z0-9][a-z0-9-]{0,30}$"
INSTANCE_NAME = r"^[a-z0-9][a-z0-9-]*\{index\}[a-z0-9-]*$"
DIGEST = r"^sha256:[0-9a-f]{64}$"
SIZE = r"^[1-9][0-9]*[kmgKMG]$"
UNIT_PATTERN = r"^[A-Za-z0-9@._*?\[\]-]+$"
CONTAINER_PATTERN = r"^[A-Za-z0-9._*?\[\]-]+$"
SHARE = r"^([1-9][0-9]?%|100%|[1-9][0-9]*)$"
MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"
METHOD = r"^[a-z0-9][a-z0-9_.-]*$"
HEADER = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"
PREFIX = r"^/[A-Za-z0-9_./-]+$"
ORIGIN = r"^(\*|https?://[A-Za-z0-9.:\[\]-]+)$"
NETWORK = r"^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$"
WORD = r"^[A-Za-z0-9_][A-Za-z0-9@._:%-]*$"
URL = r"^https?://[^\s/]+(/\S*)?$"
EXECUTABLE = r"^[A-Za-z0-9/][A-Za-z0-9/._+-]*$"

# What each pattern asks for, in words: an error shows this instead of the pattern.
PHRASES = {
    NAME: "1 to 31 lower-case letters, digits and dashes",
    INSTANCE_NAME: 'lower-case letters, digits and dashes with {index} in it, such as "qwen38-tp2-{index}"',
    DIGEST: "sha256: and 64 hex digits",
    SIZE: "a size such as 16g or 512m",
    UNIT_PATTERN: "the name of a systemd unit; *, ? and [] match as in a shell",
    CONTAINER_PATTERN: "the name of a container; *, ? and [] match as in a shell",
    SHARE: "a number of instances such as 2, or a share such as 25%",
    MODEL_NAME: "letters, digits, dots, dashes, underscores and slashes",
    METHOD: "the name of a method such as mtp",
    WORD: "a name without spaces",
    HEADER: "the name of an HTTP header",
    PREFIX: "a path prefix such as /v1/",
    ORIGIN: "`*` or an origin such as https://chat.example.com",
    NETWORK: "an address or a network such as 10.0.0.0/8",
    URL: "an address such as https://models.example.com",
    EXECUTABLE: "the name or path of an executable",
}

Whole = Annotated[int, Field(strict=True)]
Truth = Annotated[bool, Field(strict=True)]
Name = Annotated[str, StringConstraints(pattern=NAME)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=86400, allow_inf_nan=False)]
UnitPattern = Annotated[str, StringConstraints(pattern=UNIT_PATTERN)]
ContainerPattern = Annotated[str, StringConstraints(pattern=CONTAINER_PATTERN)]
Size = Annotated[str, StringConstraints(pattern=SIZE)]
Word = Annotated[str, StringConstraints(pattern=WORD)]
HostPath = Annotated[PurePosixPath, AfterValidator(_path)]
LocalPath = Annotated[str, StringConstraints(min_length=1), AfterValidator(_one_line)]
FlagValue = bool | int | float | str | list[Any] | dict[str, Any] | None
Engine = Annotated[dict[Annotated[str, AfterValidator(_flag_name)], FlagValue], AfterValidator(_one_spelling)]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values never change after loading."""

    # Building waits for the whole inventory: a command pays for one schema instead of eighteen.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Model(Section):
    """The model that every instance serves."""

    name: Annotated[
        str,
        Field(pattern=MODEL_NAME, max_length=128, description="Served name: what clients write as `model`."),
    ]
    path: HostPath = Field(
        description="Folder of the model on every machine; its parent is mounted read-only into the containers."
    )
    shared: Truth = Field(
        default=False,
        description="The path is on storage that every machine mounts: it is verified, and never copied.",
    )
    random_weights: Truth = Field(
        default=False,
        description="The weights are random numbers, as in a test: what the model says is judged nowhere.",
    )


class Image(Section):
    """The container image that every instance runs."""

    reference: Annotated[str, AfterValidator(_reference)] = Field(
        description="Reference of the image, such as `quay.io/ascend/vllm-ascend:v0.23.0`."
    )
    digest: Annotated[str, StringConstraints(pattern=DIGEST)] | None = Field(
        default=None,
        description="Pins the content: the image's id, or what its registry calls it (`sha256:` and 64 hex digits). "
        "A source that has another one stops the command. A tag alone can move.",
    )


class Speculative(Section):
    """Speculative decoding (multi-token prediction). Leave the section out to serve without it."""

    method: Annotated[str, StringConstraints(pattern=METHOD)] = Field(
        default="mtp", description="Method of `--speculative-config`."
    )
    tokens: Annotated[int, Field(strict=True, ge=0, le=15)] = Field(
        default=3,
        description="`num_speculative_tokens`; 0 turns speculation off. `fleetctl rollout --mtp N` "
        "overrides it for a "
        "release.",
    )


class DeviceMode(str, Enum):
    PRIVILEGED = "privileged"
    MAPPED = "mapped"


class Accelerator(Section):
    """The accelerators of a machine and how a container gets its own."""

    kind: Literal["ascend"] = Field(default="ascend", description="Family of the accelerators.")
    device_mode: DeviceMode = Field(
        default=DeviceMode.MAPPED,
        description="`mapped` maps exactly the instance's own devices into its container; `privileged` "
        "shows it all of "
        "them and names its own by environment variables. Device ids are computed for either, never typed.",
    )
    soc: Literal["a2", "a3", "a5", "310p"] = Field(
        default="a2", description="Generation of the hardware; 910B4 cards are `a2`. An image is built for one of them."
    )
    devices: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        default=8, description="Number of devices of a machine."
    )
    driver: HostPath = Field(
        default=PurePosixPath("/usr/local/Ascend/driver"),
        description="Folder of the driver on the machines, mounted read-only.",
    )
    dcmi: HostPath = Field(
        default=PurePosixPath("/usr/local/dcmi"),
        description="Folder of the DCMI library on the machines, mounted read-only.",
    )
    npu_smi: HostPath = Field(
        default=PurePosixPath("/usr/local/sbin/npu-smi"),
        description="The npu-smi program on the machines, mounted read-only.",
    )


class Instances(Section):
    """The vLLM servers of a machine. Instance `i` gets the `i`-th block of devices and the `i`-th port."""

    name: Annotated[str, StringConstraints(pattern=INSTANCE_NAME, max_length=60)] = Field(
        description="Name of container and unit, with `{index}` in it."
    )
    per_machine: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        description="Instances on each machine; `machines[].instances` overrides it."
    )
    devices: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(description="Devices of each instance.")
    port: Port = Field(default=8000, description="Port of instance 0; the others follow.")
    shm_size: Size = Field(
        default="16g",
        description="Shared memory of each container. Docker's own default of 64 MiB is too small.",
    )
    cpuset: Literal["auto", "off"] = Field(
        default="auto",
        description="`auto` gives each instance its share of the CPUs of one NUMA node; `off` leaves it to the kernel.",
    )
    env: dict[
        Annotated[str, AfterValidator(_variable)],
        Annotated[str, Field(strict=True), AfterValidator(_one_line)],
    ] = Field(
        default_factory=dict,
        description="Environment of each container: text, so quote numbers. Never a secret, which "
        "`docker inspect` "
        "would show.",
    )
    log_max_size: Size = Field(default="100m", description="Size at which Docker rotates the log of a container.")


class Jump(Section):
    """The host that a machine is reached through."""

    host: Word = Field(description="Name or address of the jump host, or its name in ssh_config.")
    port: Port = Field(default=22, description="Port of its SSH server.")
    user: Word | None = Field(default=None, description="User on the jump host.")
    key: LocalPath | None = Field(default=None, description="Private key file on this computer.")


class Ssh(Section):
    """How the operator's computer reaches a machine. What is not given comes from ssh_config."""

    host: Word | None = Field(
        default=None, description="Name or address to connect to; without it, the machine's `address`."
    )
    port: Port | None = Field(default=None, description="Port of the SSH server; 22 when ssh_config says nothing.")
    user: Word | None = Field(default=None, description="root, or a user with `sudo -n`.")
    key: LocalPath | None = Field(default=None, description="Private key file on this computer.")
    jump: Jump | None = Field(default=None, description="Jump host, where there is one.")


class ListeningProcess(Section):
    """A process to stop, named by both the port it holds and its executable, never by a pattern."""

    port: Port = Field(description="TCP port the process listens on.")
    executable: Annotated[str, StringConstraints(pattern=EXECUTABLE)] = Field(
        description="Its executable, by name (`nginx`) or whole path."
    )


class Clean(Section):
    """What the machine ran before and has to give up. Nothing that is not listed here is ever stopped."""

    units: tuple[UnitPattern, ...] = Field(
        default=(), description="systemd units, by name or shell pattern; saved before they are removed."
    )
    containers: tuple[ContainerPattern, ...] = Field(
        default=(), description="Containers, by name or shell pattern; their definitions are saved."
    )
    processes: tuple[ListeningProcess, ...] = Field(
        default=(), description="Processes started by hand, stopped by pid."
    )
    first: Truth = Field(
        default=False,
        description="Clean before image and model are copied, where the disk does not hold old and new together.",
    )


class MachineOverride(Section):
    """What one machine does differently, such as running three instances beside a dead NPU."""

    per_machine: Annotated[int, Field(strict=True, ge=0, le=64)] | None = Field(
        default=None,
        description="Instances on this machine. Without it: as many as `devices` holds, at most the fleet's number.",
    )
    devices: tuple[Whole, ...] | None = Field(
        default=None,
        description="Host ids of the devices to use, in the order they are given out: `[0, 1, 2, 3, 4, "
        "5]` where 6 and "
        "7 are dead.",
    )


class Machine(Section):
    """One host. The order of the list is the order of joining, and of the affinity table."""

    id: Annotated[int, Field(strict=True, ge=1, le=65535)] = Field(description="Number of the machine: `67` in `67/2`.")
    address: Annotated[str, AfterValidator(_address)] = Field(
        description="IP address (4 or 6) in the cluster network: instances are published there and nowhere else."
    )
    ssh: Ssh = Field(default=Ssh.model_construct(), description="How to reach it, where that differs.")
    clean: Clean = Field(default=Clean.model_construct(), description="What it has to give up.")
    instances: MachineOverride = Field(
        default=MachineOverride.model_construct(), description="What it does differently."
    )


class Tls(Section):
    """Certificate of the balancer's listener: files on the balancer's machine."""

    certificate: HostPath = Field(description="Certificate with its chain, PEM.")
    key: HostPath = Field(description="Its private key, PEM, mode 0600.")


class Affinity(str, Enum):
    MD5_MOD = "md5-mod"
    RENDEZVOUS = "rendezvous"
    LEAST_CONN = "least_conn"


class Balancer(Section):
    """The one address users see: it spreads sessions over all instances and keeps each on one of them."""

    machine: Whole = Field(description="Id of the machine that runs it.")
    listen: Port = Field(default=2219, description="Port that users connect to.")
    state_listen: Port = Field(default=2220, description="Port on loopback for the state document and metrics.")
    unit: Name = Field(default="openresty-qwen", description="Name of its systemd unit, without `.service`.")
    public_url: Annotated[str, StringConstraints(pattern=URL)] | None = Field(
        default=None, description="Address that users type, where a gateway or NAT stands before it."
    )
    affinity: Affinity = Field(
        default=Affinity.MD5_MOD,
        description="How a session finds its instance: `md5-mod` as in the first report, `rendezvous` "
        "(fewer sessions "
        "move when machines join), or `least_conn` (none: the least busy).",
    )
    body_limit: Annotated[str, StringConstraints(pattern=SIZE)] = Field(
        default="50m", description="Largest request body."
    )
    connect_timeout: Seconds = Field(default=2, description="Seconds to wait for a backend to accept.")
    read_timeout: Seconds = Field(default=3600, description="Seconds a backend may be silent within an answer.")
    tls: Tls | None = Field(default=None, description="Serve HTTPS with this certificate.")
    mode: Literal["lua", "plain"] = Field(
        default="lua",
        description="`plain` for an nginx without the Lua module: no drain without a reload, no active "
        "health checks, "
        "no load bound, no state document (docs/balancer.md).",
    )
    weights: dict[str, Annotated[int, Field(strict=True, ge=1, le=1000)]] = Field(
        default_factory=dict,
        description='Shares of machines or instances, such as `"67": 2` or `"67/0": 3`; 1 where not given. '
        "`md5-mod` has no weights.",
    )
    session_headers: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=HEADER)], ...],
        Field(min_length=1, max_length=8),
    ] = Field(
        default=("X-Session-ID",),
        description="Headers that carry a session id, first one wins; agents send others, such as "
        "X-Claude-Code-Session-Id, Session-Id, X-Session-Affinity.",
    )
    key_order: Annotated[tuple[Literal["session", "bearer", "client"], ...], Field(min_length=1)] = Field(
        default=("session", "bearer", "client"),
        description="Where the affinity key comes from: session header, bearer token, client address.",
    )
    load_floor: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        default=None,
        description="Requests in flight below which a session never leaves its instance; max-num-seqs where not given.",
    )
    load_factor: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = Field(
        default=1.5, description="Above the floor: how many times its fair share an instance may hold."
    )
    queue_factor: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = Field(
        default=4.0,
        description="Requests in flight, in multiples of what all usable instances compute at once, "
        "above which new "
        "ones are answered 429; 0 for no limit.",
    )
    requests_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Limit for each affinity key; above it: 429 with Retry-After."
    )
    burst: Annotated[int, Field(strict=True, ge=1)] = Field(
        default=20, description="Requests a key may be ahead of `requests_per_second`."
    )
    paths: Annotated[tuple[Annotated[str, StringConstraints(pattern=PREFIX)], ...], Field(min_length=1)] = Field(
        default=("/v1/",), description="Path prefixes that are proxied; everything else is a 404."
    )
    cors_origins: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=ORIGIN)], ...],
        Field(min_length=1),
    ] = Field(default=("*",), description="Web origins that may call; `*` for all.")
    trusted_proxies: tuple[Annotated[str, StringConstraints(pattern=NETWORK)], ...] = Field(
        default=(), description="Addresses or networks whose X-Forwarded-For is believed."
    )
    workers: Annotated[int, Field(strict=True, ge=1, le=32)] | None = Field(
        default=None, description="Worker processes; computed from the number of instances where not given."
    )
    deep_probe: bool = Field(
        default=True,
        description="Ask an instance for one token when there is no recent proof that it works.",
    )


class Rollout(Section):
    """How careful a rollout is."""

    max_unavailable: Annotated[str, BeforeValidator(_number_as_text), StringConstraints(pattern=SHARE)] = Field(
        default="25%", description="How many instances may be out at a time: a number or a share."
    )
    drain_timeout: Seconds = Field(
        default=600, description="Seconds to wait for requests in flight before giving up on a drain."
    )
    start_timeout: Seconds = Field(
        default=1800, description="Seconds from the start of a container to its first completion."
    )


class Watchdog(Section):
    """Restarts engines that hang: they have requests in flight and make no step, while /health says 200."""

    enabled: bool = Field(default=True, description="Whether a timer on each machine looks for them.")
    hang_seconds: Annotated[int, Field(ge=5, le=3600)] = Field(
        default=120, description="Seconds without any progress, with requests in flight, until an engine hangs."
    )
    dead_drafts: Annotated[int, Field(ge=1)] = Field(
        default=500,
        description="Drafts of speculative decoding in a row, none of which was accepted, until an engine is restarted "
        "once it is idle.",
    )
    restarts_per_hour: Annotated[int, Field(ge=0, le=60)] = Field(
        default=2, description="After so many of its restarts in an hour an instance is parked until `fleetctl start`."
    )


class Distribution(Section):
    """How image and model travel between the machines."""

    streams: Annotated[int, Field(ge=1, le=16)] = Field(
        default=4, description="Files of the model that one transfer fetches at a time."
    )
    serves: Annotated[int, Field(ge=1, le=16)] = Field(
        default=1, description="Receivers that a machine sends to at a time; each then becomes a sender itself."
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Megabits a second that one transfer may take. Default: no limit."
    )

    @property
    def bytes_per_second(self) -> int:
        """The limit in bytes, 0 for none."""
        return self.limit * 125_000 if self.limit else 0


class SecretRef(Section):
    """Where a secret is, never its value: exactly one of the three."""

    env: Annotated[str, AfterValidator(_secret_source)] | None = Field(
        default=None, description="Environment variable of the operator's shell."
    )
    file: Annotated[str, AfterValidator(_secret_source)] | None = Field(
        default=None, description="File with mode 0600, relative to the inventory."
    )
    command: Annotated[str, AfterValidator(_secret_source)] | None = Field(
        default=None,
        description="Command that prints it, such as `pass show fleet/key`; run in the inventory's folder.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> SecretRef:
        given = [key for key in ("env", "file", "command") if getattr(self, key) is not None]
        if len(given) != 1:
            found = "none of them" if not given else " and ".join(given)
            raise ValueError(f"write exactly one of env, file and command (found {found})")
        if self.env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.env):
            raise ValueError("env: expected the name of an environment variable")
        return self


class Secrets(Section):
    """Secrets by reference."""

    api_key: SecretRef = Field(description="The key that clients send and instances check.")


class Inventory(Section):
    """One fleet: the whole file."""

    fleet: Name = Field(description="Name of the fleet; labels and folders on the machines carry it.")
    model: Model = Field(description="What is served.")
    image: Image = Field(description="What runs it.")
    source: Whole = Field(description="Id of the machine that image and model are copied from.")
    engine: Engine = Field(
        default_factory=dict,
        description="Flags of `vllm serve`, without the leading dashes. `true` is the bare flag, `false` "
        "its `--no-` form, "
        "`null` leaves it out. Flags this program does not know are passed on, and checked against the "
        "image's own help.",
    )
    speculative: Speculative | None = Field(default=None, description="Speculative decoding.")
    accelerator: Accelerator = Field(
        default=Accelerator.model_construct(), description="Devices and driver of the machines."
    )
    instances: Instances = Field(description="The vLLM servers of each machine.")
    machines: Annotated[tuple[Machine, ...], Field(min_length=1)] = Field(description="The machines, in joining order.")
    balancer: Balancer = Field(description="The balancer.")
    rollout: Rollout = Field(default=Rollout.model_construct(), description="Rollout policy.")
    watchdog: Watchdog = Field(default=Watchdog.model_construct(), description="What brings back engines that hang.")
    distribution: Distribution = Field(
        default=Distribution.model_construct(), description="How image and model travel."
    )
    secrets: Secrets = Field(description="References to secrets.")
