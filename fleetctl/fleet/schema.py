"""What a person may write in inventory.yaml, typed (design, section 4).

Pydantic is used here because this is where people's files come in; everything behind it works on the
frozen values below. Cross-field rules live in `allocation` and `lint`, file positions in `load`.
"""

from __future__ import annotations

from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
UnitPattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9@._*?\[\]-]+$")]
FlagValue = bool | int | float | str | list[Any] | dict[str, Any]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Section):
    name: str
    path: PurePosixPath
    shared: bool = False


class Image(Section):
    reference: str
    digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None


class Speculative(Section):
    method: str = "mtp"
    tokens: Annotated[int, Field(ge=0, le=15)] = 3


class DeviceMode(str, Enum):
    PRIVILEGED = "privileged"
    MAPPED = "mapped"


class Accelerator(Section):
    kind: Literal["ascend"] = "ascend"
    device_mode: DeviceMode = DeviceMode.MAPPED
    devices: Annotated[int, Field(ge=1, le=64)] = 8
    driver: PurePosixPath = PurePosixPath("/usr/local/Ascend/driver")
    dcmi: PurePosixPath = PurePosixPath("/usr/local/dcmi")
    npu_smi: PurePosixPath = PurePosixPath("/usr/local/sbin/npu-smi")


class Instances(Section):
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*\{index\}[a-z0-9-]*$")]
    per_machine: Annotated[int, Field(ge=1, le=64)]
    devices: Annotated[int, Field(ge=1, le=64)]
    port: Port = 8000
    shm_size: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[kmgKMG]$")] = "16g"
    cpuset: Literal["auto", "off"] = "auto"
    env: dict[str, str] = Field(default_factory=dict)
    log_max_size: str = "100m"


class Jump(Section):
    host: str
    port: Port = 22
    user: str | None = None
    key: str | None = None


class Ssh(Section):
    """How operators reach a machine; what is not given comes from ssh_config."""

    host: str | None = None
    port: Port | None = None
    user: str | None = None
    key: str | None = None
    jump: Jump | None = None


class ListeningProcess(Section):
    """A process to stop, named by both the port it holds and its executable, never by a pattern."""

    port: Port
    executable: str


class Clean(Section):
    units: tuple[UnitPattern, ...] = ()
    containers: tuple[str, ...] = ()
    processes: tuple[ListeningProcess, ...] = ()
    first: bool = False


class MachineOverride(Section):
    """What one machine does differently, such as running three instances beside a dead NPU."""

    per_machine: Annotated[int, Field(ge=0, le=64)] | None = None
    devices: tuple[int, ...] | None = None


class Machine(Section):
    id: Annotated[int, Field(ge=1, le=65535)]
    address: str
    ssh: Ssh = Ssh()
    clean: Clean = Clean()
    instances: MachineOverride = MachineOverride()


class Tls(Section):
    certificate: str
    key: str


class Affinity(str, Enum):
    MD5_MOD = "md5-mod"
    RENDEZVOUS = "rendezvous"
    LEAST_CONN = "least_conn"


class Balancer(Section):
    machine: int
    listen: Port = 2219
    state_listen: Port = 2220
    unit: Name = "openresty-qwen"
    public_url: str | None = None
    affinity: Affinity = Affinity.MD5_MOD
    body_limit: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[kmg]$")] = "50m"
    connect_timeout: Seconds = 2
    read_timeout: Seconds = 3600


class Rollout(Section):
    max_unavailable: Annotated[str, StringConstraints(pattern=r"^([1-9][0-9]?%|100%|[1-9][0-9]*)$")] = "25%"
    drain_timeout: Seconds = 600
    start_timeout: Seconds = 1800


class SecretRef(Section):
    """Where a secret is, never its value: exactly one of the three."""

    env: str | None = None
    file: str | None = None
    command: str | None = None


class Secrets(Section):
    api_key: SecretRef


class Inventory(Section):
    fleet: Name
    model: Model
    image: Image
    source: int
    engine: dict[str, FlagValue] = Field(default_factory=dict)
    speculative: Speculative | None = None
    accelerator: Accelerator = Accelerator()
    instances: Instances
    machines: Annotated[tuple[Machine, ...], Field(min_length=1)]
    balancer: Balancer
    rollout: Rollout = Rollout()
    secrets: Secrets
