"""layers.py IMAGE VERB: an image's layers, byte for byte, out of Docker's own store: the source's side of a copy.

    layers                   first `image ID SIZE`, then a line per layer, bottom up: `DIFFID TARBYTES`
    config                   the image's configuration: its sha256 is the image's id
    layer DIFFID OFFSET [R]  the layer's tar from byte OFFSET on, at most R bytes a second (0: no limit)

Docker's overlay2 store unpacks a layer into a folder and keeps what that loses (headers, padding, order) beside it as
tar-split.json.gz: bytes to copy and files to read, in order. Replaying them gives the tar whose sha256 is the diff id.
Where things are is asked of Docker; VERB and its words come from the network.

Exit status: 1 the store cannot be read, 2 wrong words, 3 this way does not apply here (`layers` has then printed diff
ids with `-` for sizes), 4 no such image, 5 the image has no such layer, 75 Docker does not answer. Python 3.6 or later.
"""

import base64
import gzip
import hashlib
import http.client
import itertools
import json
import os
import re
import signal
import socket
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

SOCKET = "/run/docker.sock"
CHUNK = 1 << 18
LONGEST = 4 << 20  # bytes of a line of tar-split: a header or padding in base64, a few KiB

IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NUMBER = re.compile(r"[0-9]{1,15}")

BROKEN, WORDS, OTHER_WAY, NO_IMAGE, NO_LAYER, AWAY = 1, 2, 3, 4, 5, 75


class Refused(Exception):
    """Why it ends, and with which exit status."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def docker(path: str) -> "tuple[int, object]":
    """Status and body of a GET of Docker's API. Raises Refused (75) when Docker does not answer."""
    client = http.client.HTTPConnection("docker")
    try:
        client.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.sock.settimeout(30)
        client.sock.connect(SOCKET)
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, json.loads(answer.read().decode("utf-8"))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Refused(AWAY, f"Docker does not answer on {SOCKET}: {error}") from error
    finally:
        client.close()


class Layer:
    """One layer of the overlay2 store. Raises Refused (3) when the store does not hold it whole."""

    def __init__(self, root: Path, chain: str, digest: str) -> None:
        folder = root / "image/overlay2/layerdb/sha256" / chain
        try:
            found = (folder / "diff").read_text(encoding="ascii").strip()
            cache = (folder / "cache-id").read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise Refused(OTHER_WAY, f"Docker's layer store does not hold {digest}: {error}") from error
        self.digest = digest
        self.split = folder / "tar-split.json.gz"
        self.files = root / "overlay2" / cache / "diff"
        named = found == digest and re.fullmatch(r"[0-9a-z-]+", cache)
        if not (named and self.split.is_file() and self.files.is_dir()):
            raise Refused(OTHER_WAY, f"Docker's layer store does not hold {digest} whole ({folder})")

    def pieces(self) -> "Iterator[tuple[int, str, bytes]]":
        """What the tar is made of: size in bytes, and the bytes in base64 or the name of the file that has them."""
        try:
            with gzip.open(str(self.split), "rb") as lines:
                for line in iter(lambda: lines.readline(LONGEST), b""):
                    yield _piece(line)
        except (OSError, EOFError, zlib.error, LookupError, TypeError, AttributeError, ValueError) as error:
            raise Refused(OTHER_WAY, f"{self.split} cannot be read: {error!r}") from error

    def size(self) -> int:
        """Bytes of the tar."""
        return sum(size for size, _, _ in self.pieces())

    def replay(self, offset: int, chunk: int, write: "Callable[[bytes], None]") -> None:
        """The tar from byte `offset` on. Files are read inside the layer's folder, whatever links it holds.

        Raises Refused (1) when a file is not what the layer says.
        """
        pieces = self.pieces()
        first = [piece for piece in [next(pieces, None)] if piece]  # opens tar-split, out of reach from here on
        os.chroot(str(self.files))
        os.chdir("/")
        position = 0
        for size, payload, name in itertools.chain(first, pieces):
            skip = max(offset - position, 0)
            if skip < size and name:
                _copy(name, skip, size, chunk, write)
            elif skip < size:
                write(base64.b64decode(payload)[skip:])
            position += size
        if offset > position:
            raise Refused(WORDS, f"the layer has {position} bytes")


def _piece(line: bytes) -> "tuple[int, str, bytes]":
    """Raises ValueError, LookupError, TypeError or AttributeError for what is no line of tar-split."""
    if not line.endswith(b"\n"):
        raise ValueError("a line is cut off, or longer than any header")
    entry = json.loads(line.decode("utf-8"))
    if entry["type"] == 2:
        payload = entry["payload"]
        return len(payload) // 4 * 3 - payload.count("=", -2), payload, b""
    if entry["type"] != 1:
        raise ValueError("an entry of unknown type")
    size = entry.get("size", 0)
    if not isinstance(size, int) or size < 0:
        raise ValueError("a file of no size")
    raw = entry.get("name_raw")
    return size, "", base64.b64decode(raw) if raw else entry["name"].encode("utf-8")


def _copy(name: bytes, skip: int, size: int, chunk: int, write: "Callable[[bytes], None]") -> None:
    """Bytes `skip` to `size` of a file."""
    try:
        # A pipe or a device of that name is not waited for.
        descriptor = os.open(b"/" + name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise Refused(BROKEN, f"{name!r} of the layer cannot be opened: {error}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            raise Refused(BROKEN, f"{name!r} is not the file of {size} bytes that the layer says")
        os.lseek(descriptor, skip, os.SEEK_SET)
        while skip < size:
            data = os.read(descriptor, min(chunk, size - skip))
            if not data:
                raise Refused(BROKEN, f"{name!r} became shorter")
            write(data)
            skip += len(data)
    except OSError as error:
        raise Refused(BROKEN, f"{name!r} of the layer cannot be read: {error}") from error
    finally:
        os.close(descriptor)


class Image:
    """An image as Docker says it is. Raises Refused (4) when Docker has none of that name."""

    def __init__(self, name: str) -> None:
        status, found = docker(f"/images/{name}/json")
        if status == 404:
            raise Refused(NO_IMAGE, f"Docker has no image {name}")
        if status != 200 or not isinstance(found, dict):
            raise Refused(AWAY, f"Docker answers {status} when asked for {name}: {found}")
        self.id, self.size = str(found["Id"]), int(found["Size"])
        self.digests = [str(digest) for digest in found["RootFS"]["Layers"]]

    def store(self) -> Path:
        """Docker's root folder. Raises Refused (3) when the layers are not in an overlay2 store below it."""
        _, found = docker("/info")
        info = found if isinstance(found, dict) else {}
        driver = info.get("Driver")
        if driver != "overlay2" or "io.containerd" in json.dumps(info.get("DriverStatus")):
            raise Refused(OTHER_WAY, f"Docker keeps its images with {driver}, not in the overlay2 store")
        return Path(str(info["DockerRootDir"]))

    def layers(self) -> "Iterator[Layer]":
        """Bottom up. A layer's place in the store is named by it and all that is below it."""
        root, chain = self.store(), ""
        for digest in self.digests:
            named = f"sha256:{chain} {digest}".encode("ascii")
            chain = hashlib.sha256(named).hexdigest() if chain else digest[7:]
            yield Layer(root, chain, digest)

    def config(self) -> bytes:
        path = self.store() / "image/overlay2/imagedb/content/sha256" / self.id[7:]
        try:
            text = path.read_bytes()
        except OSError as error:
            raise Refused(OTHER_WAY, f"Docker's image store does not hold {self.id}: {error}") from error
        if "sha256:" + hashlib.sha256(text).hexdigest() != self.id:
            raise Refused(OTHER_WAY, f"{path} is not {self.id}")
        return text


def list_layers(image: Image) -> None:
    print(f"image {image.id} {image.size}")
    try:
        lines = [f"{layer.digest} {layer.size()}" for layer in image.layers()]
    except Refused:
        print("\n".join(f"{digest} -" for digest in image.digests), flush=True)
        raise
    print("\n".join(lines), flush=True)


def send(image: Image, digest: str, offset: int, rate: int) -> None:
    """Raises Refused (5) when the image has no such layer: its name may have moved since it was listed."""
    if digest not in image.digests:
        raise Refused(NO_LAYER, f"the image {image.id} has no layer {digest}")
    layer = next(layer for layer in image.layers() if layer.digest == digest)
    chunk = min(CHUNK, max(rate // 8, 512)) if rate else CHUNK
    due = time.monotonic()
    with open(1, "wb", buffering=chunk, closefd=False) as output:

        def paced(data: bytes) -> None:
            nonlocal due
            output.write(data)
            if rate:
                now = time.monotonic()
                # What a stalled link did not take is not made up for.
                due = max(due, now - 1) + len(data) / rate
                time.sleep(max(due - now, 0))

        layer.replay(offset, chunk, paced)


def main(argv: "list[str]") -> None:
    """Raises Refused."""
    words = argv[1:]
    if not argv or not IMAGE.fullmatch(argv[0]) or ".." in argv[0]:
        raise Refused(WORDS, "usage: layers.py IMAGE layers|config|layer DIFFID OFFSET [BYTES_PER_SECOND]")
    if words == ["layers"]:
        list_layers(Image(argv[0]))
    elif words == ["config"]:
        os.write(1, Image(argv[0]).config())
    elif (
        len(words) in (3, 4)
        and words[0] == "layer"
        and DIGEST.fullmatch(words[1])
        and all(NUMBER.fullmatch(word) for word in words[2:])
    ):
        send(Image(argv[0]), words[1], int(words[2]), int(words[3]) if len(words) == 4 else 0)
    else:
        raise Refused(WORDS, "not understood: {!r}".format(" ".join(words)[:200]))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the receiver is gone
    try:
        main(sys.argv[1:])
    except Refused as refused:
        print(refused, file=sys.stderr)
        sys.exit(refused.code)
