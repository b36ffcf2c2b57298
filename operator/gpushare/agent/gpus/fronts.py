"""Brings what containers have mounted from this image to the node: the front libraries, and the program `pre-stop`.

A front library lies in front of one of the driver's: it shows a container its grant as the GPU's memory, or knows its
client's class and launches. The program is the preStop hook of containers (`native/`).

Guarantees: each version has a directory of its own, named by its content, and a file that a container may have mounted
is never changed. A version of the libraries goes once no CDI spec names it; a container that has it mounted keeps it
all the same. The program's versions stay, of 2 KB each: without CDI the kubelet mounts them again from its own record.
Nobody gets a lease on one (`readers`).
"""

import hashlib
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from gpushare.agent.gpus.container_labels import Label, open_to_containers
from gpushare.agent.gpus.readers import Readers
from gpushare.mps.files import write_bytes
from gpushare.process.bounded_read import read_bytes

Fronts = Mapping[str, str]
"""SONAME of a driver's library -> path on the node of what lies in front of it."""

MAX_LIBRARY_BYTES = 4 * 1024 * 1024
CUDA, NVML = SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
CLASSES = "libcuda-classes.so.1"
"""The file of the front of libcuda.so.1 that launches pass, in the place of the one that none passes. It shows the
grant as well, where that is asked for."""

PROGRAM = "pre-stop"


class PreStopProgram:
    """`source`: where the image has it. `directory`: the node's, at the same path here."""

    def __init__(self, source: Path, directory: Path, label: Label = open_to_containers) -> None:
        self._source = source / PROGRAM
        self._directory = directory
        self._label = label
        self._readers = Readers()
        self._delivered: Path | None = None

    def delivered(self) -> str | None:
        """Its path on the node; None: this image has none. OSError: the node takes none."""
        if self._delivered is None or not self._delivered.is_file():
            try:
                content = read_bytes(self._source, MAX_LIBRARY_BYTES)
            except FileNotFoundError:
                return None
            version = self._directory / hashlib.sha256(content).hexdigest()[:16]
            version.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._label(version)
            path = version / PROGRAM
            if _is_torn(path, content):
                self._readers.close(version)
                write_bytes(path, content, mode=0o755)
            self._readers.open_all(self._directory)
            self._delivered = path
        return str(self._delivered)


class FrontLibraries:
    """`source`: where the image has them. `directory`: the node's, at the same path here; made when it is needed."""

    def __init__(self, source: Path, directory: Path, label: Label = open_to_containers) -> None:
        self._label = label
        self._source = source
        self._directory = directory
        self._readers = Readers()
        self._delivered: dict[str, str] = {}

    def delivered(self, *, shows_grant: bool, has_classes: bool) -> Fronts:
        """Those of a container that sees its grant, or has a class. Copies what is not there. OSError: this image has
        none, or the node takes none.
        """
        files = {CUDA: CUDA, NVML: NVML} if shows_grant else {}
        files |= {CUDA: CLASSES} if has_classes else {}
        if not all(Path(self._delivered.get(name, "")).is_file() for name in files.values()):
            self._delivered = self._deliver(files.values())
        return {soname: self._delivered[name] for soname, name in files.items()}

    def remove_unused(self, specs: str) -> None:
        """Removes the versions that the text does not name. OSError: some are left."""
        if self._directory.is_dir():
            for version in self._directory.iterdir():
                if version.name not in specs:
                    self._readers.close(version)
                    shutil.rmtree(version)

    def _deliver(self, wanted: Collection[str]) -> dict[str, str]:
        """All that the image has, so that one version serves every share. OSError: it lacks one that is wanted."""
        names = [name for name in (*SONAMES, CLASSES) if name in wanted or (self._source / name).is_file()]
        contents = {name: read_bytes(self._source / name, MAX_LIBRARY_BYTES) for name in names}
        digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents.values()))
        version = self._directory / digest.hexdigest()[:16]
        version.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._label(version)
        for name, content in contents.items():
            if _is_torn(version / name, content):
                self._readers.close(version)
                write_bytes(version / name, content, mode=0o644)
        self._readers.open_all(self._directory)
        return {name: str(version / name) for name in contents}


def _is_torn(path: Path, content: bytes) -> bool:
    """Whether there is less of the file than was written, as a power cut may leave it. It is not opened, which takes as
    long as a lease of somebody's on it.
    """
    return not path.is_file() or path.stat().st_size != len(content)
