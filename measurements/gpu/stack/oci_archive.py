"""OCI archives with uncompressed layers: they compress better as a whole, and unpack at the speed of the disk.

Format: OCI Image Format Specification 1.1, image layout in a tar.
"""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEDIA = "application/vnd.oci.image."
BLOCK = 1 << 20
Json = dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """An uncompressed tar on disk; `digest` is its sha256, in hexadecimal."""

    path: Path
    digest: str


def layer_of(path: Path) -> Layer:
    with path.open("rb") as file:
        return Layer(path, hashlib.file_digest(file, "sha256").hexdigest())


def write(archive: Path, name: str, config: Mapping[str, Any], layers: Sequence[Layer]) -> None:
    """Writes an image `name`. `config`: an image configuration without its `rootfs`, which the layers determine."""
    diffs = {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]}
    settings = _json({**config, "rootfs": diffs})
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}manifest.v1+json",
            "config": _descriptor("config.v1+json", settings),
            "layers": [
                {
                    "mediaType": f"{MEDIA}layer.v1.tar",
                    "digest": f"sha256:{stored.digest}",
                    "size": stored.path.stat().st_size,
                }
                for stored in layers
            ],
        }
    )
    named = _descriptor("manifest.v1+json", manifest) | {"annotations": {"io.containerd.image.name": name}}
    index = {"schemaVersion": 2, "mediaType": f"{MEDIA}index.v1+json", "manifests": [named]}
    with tarfile.open(archive, "w") as tar:
        for path, content in (("oci-layout", _json({"imageLayoutVersion": "1.0.0"})), ("index.json", _json(index))):
            _add(tar, path, content)
        for blob in (settings, manifest):
            _add(tar, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        for digest, layer in {stored.digest: stored for stored in layers}.items():
            tar.add(layer.path, f"blobs/sha256/{digest}")


def uncompressed(source: Path, archive: Path, name: str, scratch: Path) -> None:
    """Copies the only image of an OCI archive, with the name `name` and plain layers, which are kept in `scratch`."""
    with tarfile.open(source) as tar:
        [described] = _read(tar, "index.json")["manifests"]
        manifest = _read(tar, _blob(described))
        layers = [_plain(tar, item, scratch / str(number)) for number, item in enumerate(manifest["layers"])]
        config = _read(tar, _blob(manifest["config"]))
    write(archive, name, config, layers)


def _plain(tar: tarfile.TarFile, described: Json, path: Path) -> Layer:
    blob = tar.extractfile(_blob(described))
    assert blob is not None
    compressed = described["mediaType"].endswith("+gzip")
    with path.open("wb") as file:
        shutil.copyfileobj(gzip.GzipFile(fileobj=blob) if compressed else blob, file, BLOCK)
    return layer_of(path)


def _read(tar: tarfile.TarFile, member: str) -> Json:
    file = tar.extractfile(member)
    assert file is not None
    content: Json = json.load(file)
    return content


def _blob(described: Json) -> str:
    return f"blobs/sha256/{described['digest'].removeprefix('sha256:')}"


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    member = tarfile.TarInfo(path)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _descriptor(kind: str, blob: bytes) -> Json:
    return {"mediaType": MEDIA + kind, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
