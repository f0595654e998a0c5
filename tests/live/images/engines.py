"""Docker engines beside the box's own, and images made byte by byte."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DISK = 400 << 20


@dataclass
class Engine:
    """A dockerd with its own store on a file system of its own (in memory, DISK bytes)."""

    name: str
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="fleetctl-engine-")))

    def __post_init__(self) -> None:
        self.root, self.socket = self.folder / "root", self.folder / "docker.sock"
        self.root.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", self.root], check=True)
        options = ["--data-root", self.root, "--exec-root", self.folder / "exec", "-H", f"unix://{self.socket}"]
        options += ["--pidfile", self.folder / "pid", "--bridge", "none", "--iptables=false", "--ip6tables=false"]
        options += ["--storage-driver", "overlay2", "--containerd-namespace", f"fleetctl-{self.name}"]
        options += ["--containerd-plugins-namespace", f"fleetctl-{self.name}-plugins"]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                ["dockerd", *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        for _ in range(300):
            if self.docker("version", check=False).returncode == 0:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        text = (self.folder / "log").read_text()[-2000:]
        self.stop()
        raise RuntimeError(f"dockerd does not start: {text}")

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "DOCKER_HOST": f"unix://{self.socket}"}

    def docker(self, *words: str | Path, check: bool = True, **more: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", *words], env=self.environment, capture_output=True, check=check, **more)

    def load(self, *archives: bytes) -> None:
        for archive in archives:
            self.docker("load", "-q", input=archive)

    def id(self, image: str) -> str:
        """Empty where there is no such image."""
        return self.docker("image", "inspect", "-f", "{{.Id}}", image, check=False).stdout.decode().strip()

    def images(self) -> list[str]:
        """Every image, as name or id."""
        lines = self.docker("image", "ls", "-a", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}").stdout
        found = (line.split() for line in lines.decode().splitlines())
        return sorted(identity if name == "<none>:<none>" else name for name, identity in found)

    def empty(self) -> None:
        found = self.docker("image", "ls", "-aq").stdout.decode().split()
        if found:
            self.docker("rmi", "-f", *set(found), check=False)
        shutil.rmtree(self.root / "fleetctl-partial", ignore_errors=True)

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        subprocess.run(["umount", "-R", "-l", self.root], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def layer(files: dict[str, bytes]) -> bytes:
    """A layer's tar. A name that ends with a slash is a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode, info.size = 0o755, len(content)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def shell() -> dict[str, bytes]:
    """The files of a /bin/sh that runs alone: this box's own, with what it is linked to."""
    linked = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout.split()
    files = ["/bin/sh", *(word for word in linked if word.startswith("/"))]
    return {name[1:]: Path(name).resolve().read_bytes() for name in files}


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def archive(name: str, *tars: bytes) -> bytes:
    """What `docker load` takes: the image NAME of these layers."""
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"], "Labels": {"name": name}},
            "rootfs": {"type": "layers", "diff_ids": [digest(tar) for tar in tars]},
            "history": [{"created_by": f"layer {number}"} for number, _ in enumerate(tars)],
        }
    ).encode()
    members = {f"{number}.tar": tar for number, tar in enumerate(tars)}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": list(members)}]
    members |= {"config.json": config, "manifest.json": json.dumps(manifest).encode()}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()
