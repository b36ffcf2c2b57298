"""Writes a one-file container image as an OCI archive: the pause image needs no image builder."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

_MEDIA = "application/vnd.oci.image."
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_static_image(archive: Path, name: str, executable: Path) -> None:
    """An image `name` whose only file and entry point is the statically linked `executable`."""
    layer = _tar({executable.name: executable.read_bytes()}, mode=0o755)
    config = _json(
        {
            "architecture": _ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Entrypoint": ["/" + executable.name]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MEDIA + "manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar", layer)],
        }
    )
    reference = _descriptor("manifest.v1+json", manifest) | {"annotations": {"io.containerd.image.name": name}}
    index = {"schemaVersion": 2, "mediaType": _MEDIA + "index.v1+json", "manifests": [reference]}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    files |= {f"blobs/sha256/{_digest(blob).split(':')[1]}": blob for blob in (layer, config, manifest)}
    archive.write_bytes(_tar(files, mode=0o644))


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _descriptor(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": _MEDIA + kind, "digest": _digest(blob), "size": len(blob)}


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
