"""The image job between two real engines: only what is missing travels, whatever happens on the way."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleetctl.commands import programs
from fleetctl.commands.script import Script
from tests.live.images.engines import Engine, archive, digest, layer, shell

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("dockerd") is None, reason="needs root and the Docker engine's program"
)

IMAGE = "registry.example/engine:v2"
OLD = "registry.example/engine:v1"
HERE = Path(__file__).parent
SOME = random.Random(7)
BASE = layer({"bin/": b"", **shell(), "opt/": b"", "opt/base": SOME.randbytes(3 << 20)})
MIDDLE = layer({"opt/通义 千问\n": SOME.randbytes(500_000), "opt/empty": b"", ".wh.gone": b""})
TOP = layer({"opt/top": SOME.randbytes(2 << 20)})
OTHER = layer({"opt/top": SOME.randbytes(1 << 20)})


@dataclass
class Ended:
    code: int
    out: str
    err: str


class Copy:
    """Source, receiver, and the wire between them."""

    def __init__(self, source: Engine, receiver: Engine, folder: Path) -> None:
        self.source, self.receiver, self.folder = source, receiver, folder
        self.wire, self.keys = folder / "wire", folder / "demo-image"
        self.wire.mkdir()
        shutil.copy(HERE / "wire.py", self.wire / "wire.py")
        (self.wire / "ssh").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{self.wire}/wire.py" "$@"\n')
        (self.wire / "ssh").chmod(0o755)
        self.programs = folder / "programs"
        self.programs.mkdir()
        text = programs.text("layers").replace("/run/docker.sock", str(source.socket))
        (self.programs / "layers.py").write_text(text)
        (self.programs / "revoke").write_text(f"touch {self.wire}/forgotten\n")
        self.breaks()

    def breaks(self, *faults: dict[str, object], path: str | None = None) -> None:
        serve = Script("serve", ("root", "demo-67-image", str(self.programs), "/models", IMAGE)).text
        environment = {"DOCKER_HOST": f"unix://{self.source.socket}", **({"PATH": path} if path else {})}
        settings = {"environment": environment, "serve": ["/bin/sh", "-c", serve], "faults": faults}
        (self.wire / "settings.json").write_text(json.dumps(settings))

    def start(self, limit: int = 0, image: str = IMAGE, patience: int = 900, driver: str = "") -> subprocess.Popen[str]:
        self.keys.mkdir(mode=0o700)
        (self.keys / "config").touch()
        text = Script("job_image", (str(self.keys), image, limit)).text.replace("sleep $((", "sleep 0.1 #")
        text = text.replace("PATIENCE=900", f"PATIENCE={patience}")
        if driver:
            text = text.replace("{{.Driver}}", driver)
        environment = {**self.receiver.environment, "PATH": f"{self.wire}:{os.environ['PATH']}"}
        return subprocess.Popen(
            ["sh", "-c", text],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, code: int = 0, **how: Any) -> Ended:
        """To its end; `how` as for start."""
        process = self.start(**how)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, out + err
        assert not self.keys.exists()
        assert (self.wire / "forgotten").exists()
        return Ended(process.returncode, out, err)

    @property
    def asked(self) -> list[str]:
        return (self.wire / "asked").read_text().splitlines()

    def carried(self, verb: str) -> int:
        """Bytes that the source sent in answer to a verb."""
        lines = (line.split() for line in (self.wire / "carried").read_text().splitlines())
        return sum(int(size) for what, size in lines if what == verb)

    @property
    def partial(self) -> Path:
        return self.receiver.root / "fleetctl-partial"

    def assert_copied(self, *others: str) -> None:
        """The receiver has the image as the source has it, and nothing else of the copy."""
        assert self.receiver.id(IMAGE) == self.source.id(IMAGE) != ""
        assert self.receiver.images() == sorted([IMAGE, *others])
        assert not self.partial.exists()
        assert not any((self.receiver.root / "tmp").iterdir())
        assert self.receiver.docker("ps", "-aq").stdout == b""
        saved = self.receiver.docker("save", IMAGE).stdout
        assert len(saved) > len(BASE)


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    source = Engine("source")
    try:
        receiver = Engine("receiver")
    except RuntimeError:
        source.stop()
        raise
    yield source, receiver
    receiver.stop()
    source.stop()


@pytest.fixture
def copy(engines: tuple[Engine, Engine], tmp_path: Path) -> Iterator[Copy]:
    for engine in engines:
        engine.empty()
    yield Copy(*engines, tmp_path)


def test_only_the_layers_that_the_receiver_lacks_travel(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, MIDDLE, TOP))
    copy.receiver.load(archive(OLD, BASE, MIDDLE, OTHER))
    done = copy.run()
    copy.assert_copied(OLD)
    assert copy.carried("layer") == len(TOP)
    assert copy.carried("layers") + copy.carried("config") < 2000
    assert copy.asked == ["layers", "config", f"layer {digest(TOP)} 0 0", "forget"]
    lines = done.out.splitlines()
    assert lines[0] == f"bytes 0 {len(TOP)} 1 of 3 layers are missing"
    assert lines[-1] == f"bytes {len(TOP)} {len(TOP)} complete"
    assert done.err == ""


def test_an_image_whose_layers_are_all_there_needs_its_configuration_only(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, MIDDLE))
    copy.receiver.load(archive(OLD, BASE, MIDDLE, OTHER))
    copy.run()
    copy.assert_copied(OLD)
    assert copy.carried("layer") == 0


def test_twenty_cuts_cost_no_byte(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, MIDDLE, TOP))
    copy.breaks(*({"after": 200_000 + 997 * number} for number in range(20)))
    done = copy.run()
    copy.assert_copied()
    assert copy.carried("layer") == len(BASE) + len(MIDDLE) + len(TOP)
    assert done.out.count("trying again") == 20


@pytest.mark.matrix
def test_connections_that_bring_nothing_do_not_end_it_at_once(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE))
    copy.breaks(*({"after": 0} for _ in range(12)))
    copy.run()
    copy.assert_copied()


@pytest.mark.matrix
def test_a_source_that_stays_away_ends_it_and_the_next_copy_goes_on_where_it_was(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    copy.breaks({"after": len(BASE)}, {"after": 1_000_000}, *({"after": 0} for _ in range(200)))
    done = copy.run(69, patience=2)
    assert "the source has sent nothing for 2 s: Connection to 192.0.2.1 closed" in done.err
    assert copy.receiver.id(IMAGE) == ""
    copy.breaks()
    copy.run()
    copy.assert_copied()
    assert copy.carried("layer") == len(BASE) + len(TOP)


def test_a_killed_copy_is_gone_on_with(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    process = copy.start(limit=1_000_000)
    deadline = time.monotonic() + 30
    part = copy.partial / "demo-image" / digest(BASE)[7:]
    while not (part.exists() and part.stat().st_size > 300_000):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    had = part.stat().st_size
    shutil.rmtree(copy.keys)
    copy.run()
    copy.assert_copied()
    assert f"layer {digest(BASE)} {had} 0" in copy.asked


@pytest.mark.matrix
def test_a_stopped_copy_takes_its_key_with_it(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    process = copy.start(limit=1_000_000)
    deadline = time.monotonic() + 30
    while not (copy.wire / "asked").exists() or "layer " not in (copy.wire / "asked").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    assert not copy.keys.exists()


def test_wrong_bytes_on_the_receiver_are_found_and_fetched_again(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    folder = copy.partial / "demo-image"
    folder.mkdir(parents=True)
    wrong = bytearray(BASE)
    wrong[len(BASE) // 2] ^= 1
    (folder / digest(BASE)[7:]).write_bytes(wrong)
    (folder / digest(TOP)[7:]).write_bytes(TOP + b"more")
    (folder / ("0" * 64)).write_bytes(b"of another image")
    copy.run()
    copy.assert_copied()
    assert copy.carried("layer") == len(BASE) + len(TOP)


def test_a_layer_that_docker_did_not_read_is_not_fetched_again(copy: Copy) -> None:
    """Docker restarts in the moment when a layer is handed over."""
    copy.source.load(archive(IMAGE, BASE, TOP))
    real = shutil.which("docker")
    once = f'[ "$1" = load ] && [ ! -e "{copy.wire}/refused" ] && touch "{copy.wire}/refused" && exit 1'
    (copy.wire / "docker").write_text(f'#!/bin/sh\n{once}\nexec {real} "$@"\n')
    (copy.wire / "docker").chmod(0o755)
    copy.run()
    copy.assert_copied()
    assert (copy.wire / "refused").exists()
    assert copy.carried("layer") == len(BASE) + len(TOP)


def test_a_store_that_gives_wrong_bytes_is_left_for_save_and_load(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    program = copy.programs / "layers.py"
    program.write_text(program.read_text().replace("output.write(data)", "output.write(bytes(len(data)))"))
    done = copy.run()
    copy.assert_copied()
    assert done.err == "not by layers but whole, by docker save and load: layer 1 did not arrive as the source has it\n"


@pytest.mark.matrix
def test_without_python_on_the_source_the_image_goes_whole(copy: Copy, tmp_path: Path) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "docker", "readlink", "touch"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    copy.breaks(path=str(tools))
    done = copy.run(limit=4_000_000)
    copy.assert_copied()
    assert done.err == "not by layers but whole, by docker save and load: no python3 on the source\n"
    assert copy.carried("save") > len(BASE) + len(TOP)


@pytest.mark.parametrize("driver", ["overlayfs", "btrfs"])
def test_another_store_on_the_source_lets_the_image_go_whole_and_its_content_is_checked(
    copy: Copy, driver: str
) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    program = copy.programs / "layers.py"
    program.write_text(program.read_text().replace('info.get("Driver")', repr(driver)))
    done = copy.run()
    copy.assert_copied()
    assert done.err.count("\n") == 1
    assert driver in done.err


@pytest.mark.matrix
def test_another_store_on_the_receiver_lets_the_image_go_whole_and_its_content_is_checked(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    done = copy.run(driver="btrfs")
    copy.assert_copied()
    assert "Docker here keeps its images with btrfs" in done.err


@pytest.mark.matrix
def test_a_whole_copy_that_is_cut_starts_over(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    program = copy.programs / "layers.py"
    program.write_text("raise SystemExit(3)")
    copy.breaks({"after": 1_000_000}, {"after": 3_000_000})
    copy.run()
    copy.assert_copied()


@pytest.mark.matrix
def test_an_image_that_is_named_anew_on_the_source_meanwhile_is_copied_as_it_is_now(copy: Copy) -> None:
    copy.source.load(archive(OLD, BASE, OTHER), archive(IMAGE, BASE, TOP))
    rename = f"DOCKER_HOST=unix://{copy.source.socket} docker tag {OLD} {IMAGE}"
    copy.breaks({"after": 1_000_000, "run": rename})
    copy.run()
    copy.assert_copied()
    assert copy.carried("layer") == len(BASE) + len(OTHER)


def test_an_image_that_is_not_on_the_source_is_said(copy: Copy) -> None:
    assert f"the source has no {IMAGE}" in copy.run(65).err


def test_a_reference_by_digest_is_refused_before_anything_travels(copy: Copy) -> None:
    assert "write a tag" in copy.run(1, image="registry.example/engine@sha256:" + "0" * 64).err


def test_a_disk_that_fills_up_is_said_and_freed_space_is_used_to_go_on(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    filler = copy.receiver.root / "filler"
    fill = f"dd if=/dev/zero of={filler} bs=1M 2>/dev/null"
    copy.breaks({"after": len(BASE) // 2, "run": fill, "code": 0})
    done = copy.run(1)
    assert "the disk of" in done.err
    assert "is full" in done.err
    filler.unlink()
    copy.run()
    copy.assert_copied()
    assert copy.carried("layer") < len(BASE) + len(TOP) + 200_000


@pytest.mark.matrix
def test_an_image_without_a_shell_is_tried_as_far_as_it_goes(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, MIDDLE, layer({"opt/base": BASE}), OTHER))
    assert "no /bin/sh" in copy.run().out
    copy.assert_copied()


def test_an_image_that_does_not_run_never_gets_the_name(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, layer({"bin/": b"", "bin/sh": b"\x7fELF not for this machine"})))
    done = copy.run(1)
    assert "does not run" in done.err
    assert copy.receiver.id(IMAGE) == ""
    assert copy.receiver.id(copy.source.id(IMAGE)) == ""


@pytest.mark.matrix
def test_progress_is_told_every_second(copy: Copy) -> None:
    copy.source.load(archive(IMAGE, BASE, TOP))
    done = copy.run(limit=2_000_000)
    total = len(BASE) + len(TOP)
    told = [line.split() for line in done.out.splitlines() if line.startswith("bytes ")]
    arrived = [int(words[1]) for words in told]
    assert arrived == sorted(arrived)
    assert {int(words[2]) for words in told} == {total}
    assert any(0 < one < total for one in arrived)
