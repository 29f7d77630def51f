"""Images that containerd imports from a file, in place of a registry: an OCI layout in a tar."""

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from tests.support.docker.image import PATH, Image, Placed, write_tar

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
PAUSE: Final = "localhost/pause:1"
TOWLINE: Final = "localhost/towline:1"
"""`localhost/`: of any other name, containerd would ask a registry for an image that it lacks."""
USER: Final = "1000:1000"
"""A Pod that must not run as root is refused for an image that names no other user by number."""
_CHUNK_BYTES: Final = 1 << 20


def write_image(image: Image, name: str, file: Path) -> Path:
    """Write an image under this name as a file that `ctr images import` takes."""
    with tempfile.TemporaryFile(dir=file.parent) as layer:
        write_tar(image, layer)
        _write_layout(image, name, layer, file)
    return file


def pause_image(program: Path) -> Image:
    """Return the image of a Pod's sandbox: one static program."""
    return Image((Placed("/pause", program),), {}, command=("/pause",))


def _write_layout(image: Image, name: str, layer: IO[bytes], file: Path) -> None:
    digest, size = _digest_of(layer)
    config = json.dumps(
        {
            "architecture": ARCHITECTURES[os.uname().machine],
            "os": "linux",
            "config": {"Cmd": list(image.command), "Env": _variables(image), "User": USER},
            "rootfs": {"type": "layers", "diff_ids": [digest]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _described(config, "config.v1+json"),
            "layers": [{"mediaType": _media("layer.v1.tar"), "digest": digest, "size": size}],
        }
    ).encode()
    named = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    entry = {**_described(manifest, "manifest.v1+json"), "annotations": named}
    with tarfile.open(file, "w") as archive:
        _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        for content in (config, manifest):
            _add(archive, _blob(_sha256(content)), content)
        info = tarfile.TarInfo(_blob(digest))
        info.size, info.mode = size, 0o644
        layer.seek(0)
        archive.addfile(info, layer)


def _variables(image: Image) -> list[str]:
    variables: Mapping[str, str] = {"PATH": PATH, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", **image.environment}
    return [f"{name}={value}" for name, value in variables.items()]


def _described(content: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": _media(kind), "digest": _sha256(content), "size": len(content)}


def _media(kind: str) -> str:
    return f"application/vnd.oci.image.{kind}"


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _digest_of(file: IO[bytes]) -> tuple[str, int]:
    file.seek(0)
    digest = hashlib.sha256()
    size = 0
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
    return f"sha256:{digest.hexdigest()}", size


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(content), 0o644
    archive.addfile(info, io.BytesIO(content))
