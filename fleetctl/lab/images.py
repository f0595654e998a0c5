"""The images and files a lab is made of: built once from Debian packages, kept under a hash of what they are made from.

Nothing is pulled: the machines of a lab, the engine they copy from each other, and what they ran before are all
made here (a real engine also from Python packages: vllm_cpu.py). A second call finds everything and takes no time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import FleetctlError, UsageError
from fleetctl.lab import model, tiny_model, vllm_cpu
from fleetctl.lab.docker import docker, require_engine, succeeds
from fleetctl.lab.engines import Engine
from fleetctl.lab.layout import ENGINE, HOST, VLLM_CPU, cache_folder

Progress = Callable[[str], None]
BUILD_SECONDS = 900.0
KEPT_SECONDS = 3600.0
REPOSITORIES = tuple(
    f"fleetctl-lab/{name}" for name in ("base", "host", "legacy", "engine", "vllm-cpu", "vllm-cpu-packages")
)
NEEDED = ("debootstrap", "unshare", "mkfs.ext4", "mount", "losetup", "tar")

# The last layer stands for what changes from build to build; a copy that knows layers sends only that one.
ENGINE_DOCKERFILE = """\
FROM {base}
COPY simvllm /opt/simvllm/simvllm
COPY vllm /opt/simvllm/vllm
RUN chmod 755 /opt/simvllm/vllm && python3 -m compileall -q /opt/simvllm && ln -s /opt/simvllm/vllm /usr/local/bin/vllm
COPY build.txt /etc/simvllm-build
ENV PYTHONDONTWRITEBYTECODE=1
WORKDIR /workspace
"""


@dataclass(frozen=True)
class Images:
    """Image names on this box, and the files that are loaded into machines. `packages`: below a real engine."""

    base: str
    host: str
    legacy: str
    engine: str
    engine_archive: Path
    legacy_archive: Path
    model: Path
    packages: str


def fingerprint(*roots: Path) -> str:
    """A short hash of files by name, mode and content; what Python leaves behind does not count."""
    digest = hashlib.sha256()
    for root in roots:
        files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
        for path in files:
            if "__pycache__" in path.parts:
                continue
            digest.update(f"{path.relative_to(root.parent)}\0{os.access(path, os.X_OK)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def names(model_name: str, kind: Engine = Engine.SIMULATED) -> Images:
    """What the present recipes are called, built or not."""
    recipe = fingerprint(HOST)
    cache = cache_folder()
    base, of_model = f"fleetctl-lab/base:{recipe}", _hash(model_name)[:8]
    if kind is Engine.VLLM_CPU:
        packages = vllm_cpu.recipe(base)
        engine = _hash(packages, fingerprint(ENGINE, VLLM_CPU), vllm_cpu.IMAGE_DOCKERFILE)
        repository, folder = "vllm-cpu", f"tiny-model-{tiny_model.VERSION}-{of_model}"
    else:
        engine = _hash(recipe, fingerprint(ENGINE), ENGINE_DOCKERFILE)
        repository, folder = "engine", f"model-{model.VERSION}-{of_model}"
    return Images(
        base=base,
        host=f"fleetctl-lab/host:{recipe}",
        legacy=f"fleetctl-lab/legacy:{recipe}",
        engine=f"fleetctl-lab/{repository}:{engine}",
        engine_archive=cache / f"{repository}-{engine}.tar",
        legacy_archive=cache / f"legacy-{recipe}.tar",
        model=cache / folder,
        packages=f"fleetctl-lab/vllm-cpu-packages:{vllm_cpu.recipe(base)}",
    )


def _hash(*texts: str) -> str:
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:12]


def ensure(model_name: str, progress: Progress, kind: Engine = Engine.SIMULATED) -> Images:
    """Builds what is missing and returns it all. Raises UsageError when this box lacks what it takes."""
    require_root()
    require_engine()
    images = names(model_name, kind)
    with locked("lock"):
        if not all(succeeds("image", "inspect", image) for image in (images.base, images.host, images.legacy)):
            _build_host(images, progress)
        if not succeeds("image", "inspect", images.engine):
            if kind is Engine.VLLM_CPU:
                vllm_cpu.build(images.base, images.packages, images.engine, cache_folder(), progress)
            else:
                _build_engine(images, progress)
        _save(images.engine, images.engine_archive, progress)
        _save(images.legacy, images.legacy_archive, progress)
        if not images.model.is_dir():
            progress("making the model")
            make = tiny_model.make if kind is Engine.VLLM_CPU else model.make
            make(images.model, model_name)
        _forget_older([names(model_name, one) for one in Engine])
    return images


def require_root() -> None:
    if os.geteuid() != 0:
        raise UsageError("a lab needs root on this box: it mounts disks and runs machines in containers")


def _build_host(images: Images, progress: Progress) -> None:
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if missing:
        raise UsageError(f"not installed on this box: {', '.join(missing)}", next_command="make setup")
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="build-") as work:
        argv = ["unshare", "--mount", "sh", str(HOST / "build.sh"), work, images.base, images.host, images.legacy]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as build:
            said = []
            for line in build.stdout or ():
                progress(f"images: {line.strip()}")
                said.append(line)
            if build.wait() != 0:
                raise FleetctlError("".join(said[-20:]).strip(), step="build of the lab's images")


def _build_engine(images: Images, progress: Progress) -> None:
    progress(f"images: building {images.engine}")
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="engine-") as folder:
        context = Path(folder)
        shutil.copytree(ENGINE, context, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        (context / "build.txt").write_text(f"{images.engine}\n", encoding="utf-8")
        (context / "Dockerfile").write_text(ENGINE_DOCKERFILE.format(base=images.base), encoding="utf-8")
        # The classic builder: a box that has only the engine has no other, and nothing is fetched.
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        argv = ["docker", "build", "--quiet", "--network", "none", "--tag", images.engine, str(context)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if done.returncode != 0:
            raise FleetctlError(done.stderr.strip()[-800:], step=f"build of {images.engine}")


def _save(image: str, archive: Path, progress: Progress) -> None:
    if archive.is_file():
        return
    progress(f"images: saving {image}")
    new = archive.with_suffix(".new")
    docker("save", "--output", str(new), image, seconds=BUILD_SECONDS)
    new.replace(archive)


def _forget_older(present: Sequence[Images]) -> None:
    """Drops what earlier recipes left, so that the cache does not grow with every change."""
    wanted = {name for one in present for name in (one.base, one.host, one.legacy, one.engine, one.packages)}
    archives = {archive for one in present for archive in (one.engine_archive, one.legacy_archive)}
    for repository in REPOSITORIES:
        for name in docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", repository).split():
            if name not in wanted:
                # Refused while another lab uses it, which is what should happen.
                succeeds("image", "rm", name)
    for archive in cache_folder().glob("*-*.tar"):
        # Another lab may be about to load one that was made a moment ago.
        if archive not in archives and time.time() - archive.stat().st_mtime > KEPT_SECONDS:
            archive.unlink(missing_ok=True)


@contextmanager
def locked(what: str) -> Iterator[None]:
    """One at a time on this box; the second waits and then finds what the first has made."""
    path = cache_folder() / what
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
