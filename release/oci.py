"""Reads an OCI archive without unpacking it and without root: digest, layers, files of the root file system.

Guarantees: a file that a later layer replaces or removes (whiteout) appears as it is in the container, or not at all.
"""

import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


class ArchiveError(Exception):
    """The archive is no OCI archive with one image. The message names it."""


@dataclass(frozen=True)
class Layer:
    digest: str
    compressed_bytes: int
    created_by: str
    """The instruction of the Dockerfile, as the builder recorded it."""


@dataclass(frozen=True)
class File:
    """One entry of the root file system: `path` without a leading slash, `layer` by its index."""

    path: str
    layer: int
    size: int
    target: str = ""
    """The target of a link."""


class OciArchive:
    """An archive of the kind that `buildah push IMAGE oci-archive:FILE` writes."""

    def __init__(self, path: Path) -> None:
        """Raises ArchiveError when `path` does not hold exactly one image."""
        self.path = path
        with tarfile.open(path) as archive:
            index = _json(archive, "index.json", path)
            if len(index["manifests"]) != 1:
                raise ArchiveError(f"{path} holds {len(index['manifests'])} images: one is expected")
            self.digest: str = index["manifests"][0]["digest"]
            manifest = _json(archive, _blob(self.digest), path)
            config = _json(archive, _blob(manifest["config"]["digest"]), path)
        self.architecture: str = config["architecture"]
        commands = [step.get("created_by", "") for step in config["history"] if not step.get("empty_layer")]
        self.layers = [
            Layer(layer["digest"], layer["size"], command)
            for layer, command in zip(manifest["layers"], commands, strict=True)
        ]

    @property
    def compressed_bytes(self) -> int:
        """What a node downloads."""
        return sum(layer.compressed_bytes for layer in self.layers)

    def files(self) -> list[File]:
        """The root file system's files and links, ordered by path."""
        held: dict[str, File] = {}
        for number, _, member in self._members():
            path = member.name.removeprefix("./").strip("/")
            name = Path(path).name
            if name == _OPAQUE:
                _drop(held, str(Path(path).parent), number)
            elif name.startswith(_WHITEOUT):
                _drop(held, str(Path(path).with_name(name.removeprefix(_WHITEOUT))), number)
            elif not member.isdir():
                held[path] = File(path, number, member.size, member.linkname)
        return [held[path] for path in sorted(held)]

    def read(self, wanted: Callable[[str], bool]) -> dict[str, bytes]:
        """Contents of the regular files whose paths are `wanted`, by path."""
        current = {file.path: file.layer for file in self.files() if wanted(file.path)}
        return {
            path: content.read()
            for number, layer, member in self._members()
            if (path := member.name.removeprefix("./").strip("/")) in current
            and current[path] == number
            and (content := layer.extractfile(member)) is not None
        }

    def _members(self) -> Iterator[tuple[int, tarfile.TarFile, tarfile.TarInfo]]:
        with tarfile.open(self.path) as archive:
            for number, layer in enumerate(self.layers):
                with tarfile.open(fileobj=archive.extractfile(_blob(layer.digest))) as content:
                    for member in content:
                        yield number, content, member


def _drop(held: dict[str, File], path: str, layer: int) -> None:
    """Removes `path` and all below, as far as earlier layers put it there."""
    for name in [name for name in held if name == path or name.startswith(path + "/")]:
        if held[name].layer < layer:
            del held[name]


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _json(archive: tarfile.TarFile, name: str, path: Path) -> Any:
    try:
        file = archive.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise ArchiveError(f"{path} has no {name}: it is no OCI archive")
    return json.load(file)
