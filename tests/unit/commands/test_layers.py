"""layers.py gives an image's layers byte for byte out of Docker's store, and nothing else to anybody."""

from __future__ import annotations

import ast
import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import random
import socketserver
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fleetctl.commands import programs
from fleetctl.commands.programs import layers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: Docker's store is root's, and chroot")

IMAGE = "registry.example/engine:v1"
FILES = {
    "opt/plain": b"one line\n",
    "opt/a name with spaces and 'quotes\" *[1]$": b"x" * 511,
    "opt/line\nbreak": b"y" * 512,
    "opt/通义 千问/权重": b"z" * 513,
    "opt/not-utf-8-\udcff\udc80\udce9": b"raw",
    "opt/empty": b"",
    "opt/.wh.removed": b"",
    "opt/" + "deep/" * 40 + "n" * 120: b"a name longer than a header holds",
    "opt/large": random.Random(4).randbytes(70_000),
}


def a_tar(form: int = tarfile.GNU_FORMAT) -> bytes:
    """A layer with every kind of entry, and more zeros at its end than needed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, errors="surrogateescape") as tar:
        folder = tarfile.TarInfo("opt/")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for kind, name in ((tarfile.LNKTYPE, "opt/hard"), (tarfile.SYMTYPE, "opt/soft")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, "opt/large"
            tar.addfile(link)
    return out.getvalue() + bytes(3 * 512)


def entries_of(tar: bytes) -> list[dict[str, Any]]:
    """What Docker keeps as tar-split.json.gz: all that is not a file's content as segments, files by name."""
    found: list[dict[str, Any]] = []

    def add(kind: int, **rest: Any) -> None:
        found.append({"type": kind, **rest, "position": len(found)})

    position = 0
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as members:
        for member in members:
            add(2, payload=base64.b64encode(tar[position : member.offset_data]).decode())
            raw = os.fsencode(member.name)
            name = {"name_raw": base64.b64encode(raw).decode()} if b"\xff" in raw else {"name": member.name}
            size = member.size if member.isreg() else 0
            add(1, **name, **({"size": size, "payload": "AAAAAAAAAAA="} if size else {"payload": None}))
            position = member.offset_data + size
    add(2, payload=base64.b64encode(tar[position:]).decode())
    return found


def chained(digests: list[str]) -> str:
    """The chain id, as the image specification has it."""
    chain = digests[0]
    for digest in digests[1:]:
        chain = "sha256:" + hashlib.sha256(f"{chain} {digest}".encode()).hexdigest()
    return chain.removeprefix("sha256:")


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass
class Store:
    """A Docker: its folder on disk, and its API on a socket."""

    root: Path
    socket: Path
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    digests: list[str] = field(default_factory=list)
    config: bytes = b""

    def add(self, digest: str, entries: list[dict[str, Any]]) -> Path:
        """One more layer on top; returns the folder of its files."""
        self.digests.append(digest)
        cache = f"{len(self.digests):064x}"
        folder = self.layer(digest)
        folder.mkdir(parents=True)
        (folder / "diff").write_text(digest)
        (folder / "cache-id").write_text(cache)
        self.split(digest, "".join(json.dumps(entry) + "\n" for entry in entries).encode())
        files = self.root / "overlay2" / cache / "diff"
        files.mkdir(parents=True)
        self.config = json.dumps({"rootfs": {"type": "layers", "diff_ids": self.digests}}).encode()
        place = self.root / "image/overlay2/imagedb/content/sha256" / sha256(self.config)[7:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(self.config)
        self.answers[f"/images/{IMAGE}/json"] = (
            200,
            {
                "Id": sha256(self.config),
                "Size": 4321,
                "RootFS": {"Layers": self.digests},
            },
        )
        return files

    def layer(self, digest: str) -> Path:
        return self.root / "image/overlay2/layerdb/sha256" / chained(self.digests[: self.digests.index(digest) + 1])

    def split(self, digest: str, lines: bytes) -> None:
        (self.layer(digest) / "tar-split.json.gz").write_bytes(gzip.compress(lines))

    def add_tar(self, tar: bytes) -> str:
        """The layer of this tar, unpacked as Docker does."""
        files = self.add(sha256(tar), entries_of(tar))
        for name, content in FILES.items():
            path = files / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.name.startswith(".wh."):
                os.mknod(path.with_name(path.name[4:]), stat.S_IFCHR, 0)
            else:
                path.write_bytes(content)
        os.link(files / "opt/large", files / "opt/hard")
        (files / "opt/soft").symlink_to("opt/large")
        return sha256(tar)

    def run(self, *words: str, image: str = IMAGE) -> subprocess.CompletedProcess[bytes]:
        """The program as it is installed, but for the place of Docker's socket."""
        file = self.root / "layers.py"
        file.write_text(programs.text("layers").replace("/run/docker.sock", str(self.socket)))
        command = [sys.executable, "-I", str(file), image, *words]
        return subprocess.run(command, capture_output=True, check=False, timeout=60)

    def on_disk(self, digest: str) -> layers.Layer:
        return layers.Layer(self.root, self.layer(digest).name, digest)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = store.answers.get(self.path, (404, {"message": "No such image"}))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *_: Any) -> None:
            pass

    with tempfile.TemporaryDirectory() as short:  # a socket's path has at most 107 bytes
        store = Store(tmp_path, Path(short) / "docker.sock")
        store.answers["/info"] = 200, {"Driver": "overlay2", "DriverStatus": [], "DockerRootDir": str(tmp_path)}
        with socketserver.ThreadingUnixStreamServer(str(store.socket), Answer) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            yield store
            server.shutdown()
            thread.join()


def replayed(layer: layers.Layer, offset: int) -> bytes:
    """In a process of its own: it goes into the layer's folder for good."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        with contextlib.suppress(BaseException):
            layer.replay(offset, 4096, lambda data: os.writev(writer, [data]) and None)
            code = 0
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return data


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_a_layer_comes_byte_for_byte_from_every_kind_of_offset(store: Store, form: int) -> None:
    tar = a_tar(form)
    digest = store.add_tar(tar)
    layer = store.on_disk(digest)
    assert layer.size() == len(tar)
    borders, position = {0, len(tar)}, 0
    for size, _, _ in layer.pieces():
        borders |= {position - 1, position, position + 1, position + size // 2}
        position += size
    for offset in sorted(border for border in borders if 0 <= border <= len(tar)):
        assert replayed(layer, offset) == tar[offset:], offset


def test_what_is_listed_is_the_image_its_size_and_each_layers_bytes_bottom_up(store: Store) -> None:
    first, second = a_tar(), a_tar(tarfile.PAX_FORMAT)
    store.add_tar(first)
    store.add_tar(second)
    done = store.run("layers")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == [
        f"image {sha256(store.config)} 4321",
        f"{sha256(first)} {len(first)}",
        f"{sha256(second)} {len(second)}",
    ]


def test_the_whole_program_sends_a_layer_from_an_offset(store: Store) -> None:
    tar = a_tar()
    digest = store.add_tar(tar)
    assert store.run("layer", digest, "0").stdout == tar
    assert store.run("layer", digest, "70001", "0").stdout == tar[70001:]


def test_the_configuration_is_the_bytes_that_the_image_is_named_after(store: Store) -> None:
    store.add_tar(a_tar())
    assert sha256(store.run("config").stdout) == sha256(store.config)
    path = store.root / "image/overlay2/imagedb/content/sha256" / sha256(store.config)[7:]
    path.write_bytes(store.config + b" ")
    done = store.run("config")
    assert (done.returncode, done.stdout) == (3, b"")


DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("",),
        ("save",),
        ("layers", "x"),
        ("config", "../../etc/passwd"),
        ("layer",),
        ("layer", DIGEST),
        ("layer", DIGEST, "-1"),
        ("layer", DIGEST, "1e3"),
        ("layer", DIGEST, "1\n"),
        ("layer", DIGEST, "٣"),
        ("layer", DIGEST, "9" * 16),
        ("layer", DIGEST, "0", "x"),
        ("layer", DIGEST, "0", "0", "0"),
        ("layer", DIGEST + "\n", "0"),
        ("layer", "sha256:" + "A" * 64, "0"),
        ("layer", "../" + DIGEST, "0"),
        ("layer", "sha256:../../../../../../../../../../../../../etc/shadow", "0"),
    ],
)
def test_other_words_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(layers.Refused) as refused:
        layers.main([IMAGE, *words])
    assert refused.value.code == 2


def test_an_image_name_that_is_a_path_is_refused() -> None:
    for name in ("../containers", "a/../../info", "-v", "", "a b", "a?b"):
        with pytest.raises(layers.Refused) as refused:
            layers.main([name, "layers"])
        assert refused.value.code == 2


def test_a_layer_of_another_image_is_not_sent(store: Store) -> None:
    tar = a_tar()
    digest = store.add_tar(tar)
    store.answers[f"/images/{IMAGE}/json"] = 200, {"Id": DIGEST, "Size": 1, "RootFS": {"Layers": [DIGEST]}}
    done = store.run("layer", digest, "0")
    assert (done.returncode, done.stdout) == (5, b"")


def test_an_image_that_is_not_there_and_a_docker_that_is_away_are_told_apart(store: Store) -> None:
    store.add_tar(a_tar())
    assert store.run("layers", image="nothing:1").returncode == 4
    store.answers[f"/images/{IMAGE}/json"] = 500, {"message": "starting"}
    assert store.run("layers").returncode == 75
    store.socket.unlink()
    assert store.run("layers").returncode == 75


@pytest.mark.parametrize(
    "info",
    [
        {"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]},
        {"Driver": "overlay2", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]},
        {"Driver": "btrfs", "DriverStatus": None},
    ],
)
def test_another_kind_of_store_is_said_and_the_content_still_listed(store: Store, info: dict[str, Any]) -> None:
    digest = store.add_tar(a_tar())
    store.answers["/info"] = 200, {**info, "DockerRootDir": str(store.root)}
    done = store.run("layers")
    assert done.returncode == 3
    assert done.stdout.decode().splitlines() == [f"image {sha256(store.config)} 4321", f"{digest} -"]
    assert done.stderr.decode().count("\n") == 1


def _no_split(folder: Path) -> None:
    (folder / "tar-split.json.gz").unlink()


def _cut_split(folder: Path) -> None:
    file = folder / "tar-split.json.gz"
    file.write_bytes(file.read_bytes()[:-30])


def _other_diff(folder: Path) -> None:
    (folder / "diff").write_text(DIGEST)


def _cache_elsewhere(folder: Path) -> None:
    (folder / "cache-id").write_text("../../..")


@pytest.mark.parametrize("spoil", [_no_split, _cut_split, _other_diff, _cache_elsewhere])
def test_a_store_that_does_not_hold_the_layer_whole_is_another_way(store: Store, spoil: Any) -> None:
    digest = store.add_tar(a_tar())
    spoil(store.layer(digest))
    assert store.run("layers").returncode == 3


@pytest.mark.parametrize(
    "line",
    [
        b"[]\n",
        b"{}\n",
        b'{"type":3}\n',
        b'{"type":1}\n',
        b'{"type":1,"name":"x","size":-1}\n',
        b'{"type":1,"name":"x","size":"1"}\n',
        b'{"type":2,"payload":null}\n',
        b"\xff\n",
        b'{"type":2,"payload":""}',
        b'{"type":2,"payload":"' + b"A" * layers.LONGEST + b'"}\n',
    ],
)
def test_a_damaged_list_of_a_layer_is_another_way_and_no_traceback(store: Store, line: bytes) -> None:
    digest = store.add_tar(a_tar())
    store.split(digest, line)
    with pytest.raises(layers.Refused) as refused:
        store.on_disk(digest).size()
    assert refused.value.code == 3


def one_file(store: Store, name: str, size: int) -> Path:
    """A layer of one file that is yet to be made; returns the folder for it."""
    return store.add(DIGEST, [{"type": 1, "name": name, "size": size, "payload": "AAAAAAAAAAA=", "position": 0}])


def test_links_in_a_layer_do_not_lead_out_of_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"12345678")
    files = one_file(store, "way/secret", 8)
    (files / "way").symlink_to(tmp_path)
    done = store.run("layer", DIGEST, "0")
    assert (done.returncode, done.stdout) == (1, b"")
    (files / "way").unlink()
    (files / "way").mkdir()
    (files / "way/secret").symlink_to(tmp_path / "secret")
    done = store.run("layer", DIGEST, "0")
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_pipe_or_another_size_in_the_place_of_a_file_ends_it_at_once(store: Store) -> None:
    files = one_file(store, "x", 8)
    os.mkfifo(files / "x")
    assert store.run("layer", DIGEST, "0").returncode == 1
    (files / "x").unlink()
    (files / "x").write_bytes(b"1234567")
    done = store.run("layer", DIGEST, "0")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"8 bytes" in done.stderr


def test_a_file_of_30_gb_is_listed_and_resumed_near_its_end_without_reading_it(store: Store) -> None:
    size = 30 << 30
    files = one_file(store, "weights", size)
    with (files / "weights").open("wb") as file:
        file.truncate(size - 4)
        file.seek(size - 4)
        file.write(b"last")
    assert store.run("layers").stdout.decode().splitlines()[1] == f"{DIGEST} {size}"
    assert store.run("layer", DIGEST, str(size - 6)).stdout == b"\0\0last"


def test_a_limit_is_kept(store: Store) -> None:
    (one_file(store, "x", 20_000) / "x").write_bytes(bytes(20_000))
    start = time.monotonic()
    assert len(store.run("layer", DIGEST, "0", "40000").stdout) == 20_000
    assert time.monotonic() - start > 0.45


def test_it_is_written_for_an_older_python_than_ours() -> None:
    ast.parse(programs.text("layers"), feature_version=(3, 6))
