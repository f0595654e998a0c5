"""A registry of one image, read-only: Docker's v2 protocol is files at fixed paths, so nginx on the machine serves it."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from tests.lab.conftest import Lab

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"  # Docker looks at the bytes: these are not compressed
CONFIG = "application/vnd.docker.container.image.v1+json"
PORT = 5000
NGINX = f"""
pid /srv/registry/pid; error_log /dev/null;
events {{}}
http {{
  access_log off;
  server {{
    listen 127.0.0.1:{PORT};
    root /srv/registry/files;
    add_header Docker-Distribution-Api-Version registry/2.0;
    location = /v2/ {{ return 200; }}
    location ~ /manifests/ {{ default_type {MANIFEST}; }}
    location ~ /blobs/ {{ limit_rate 20m; }}
  }}
}}
"""


def serve(lab: Lab, machine: int, image: str, name: str, tag: str, scratch: Path) -> str:
    """Put `image` of the machine into a registry there; returns the reference that pulls it."""
    saved = subprocess.run(
        ["docker", "exec", lab.container(machine), "docker", "save", image], check=True, capture_output=True
    ).stdout
    files = scratch / "files" / "v2" / name
    (files / "blobs").mkdir(parents=True)
    (files / "manifests").mkdir()
    with tarfile.open(fileobj=io.BytesIO(saved)) as archive:
        parts = {member.name: member for member in archive if member.isfile()}

        def blob(path: str, media: str) -> dict[str, Any]:
            content = archive.extractfile(parts[path]).read()  # type: ignore[union-attr]
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            (files / "blobs" / digest).write_bytes(content)
            return {"mediaType": media, "size": len(content), "digest": digest}

        listed = json.load(archive.extractfile(parts["manifest.json"]))[0]  # type: ignore[arg-type]
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blob(listed["Config"], CONFIG),
            "layers": [blob(path, LAYER) for path in listed["Layers"]],
        }
    manifest = json.dumps(document).encode()
    for reference in (tag, f"sha256:{hashlib.sha256(manifest).hexdigest()}"):
        (files / "manifests" / reference).write_bytes(manifest)
    (scratch / "nginx.conf").write_text(NGINX)
    lab.on(machine, "rm -rf /srv/registry; mkdir -p /srv")
    subprocess.run(["docker", "cp", str(scratch), f"{lab.container(machine)}:/srv/registry"], check=True)
    lab.on(machine, "chmod -R a+rX /srv/registry; nginx -c /srv/registry/nginx.conf")
    return f"127.0.0.1:{PORT}/{name}:{tag}"


def stop(lab: Lab, machine: int) -> None:
    lab.on(machine, "kill $(cat /srv/registry/pid); rm -rf /srv/registry")
