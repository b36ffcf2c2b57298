"""A peer's programs as an image, made on the machine itself: with their libraries, a shell, and the tools they start.

The peer's own image has the same programs on another base, which no machine without a registry can have.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from localcluster.cluster import cluster
from localcluster.errors import LocalClusterError
from measurements.gpu.stack import host_image, tools
from measurements.gpu.stack.host_tree import Tree
from measurements.gpu.stack.place import WORK
from tests.cluster.harness import Harness

SHELL = Path("/bin/sh")
OF_THE_DRIVER = ("libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0")
"""What the driver's libraries need of the C library, and a peer's programs may not."""
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NO_COMPUTE_MODE = """#!/bin/sh
# The compute mode of this machine is not ours to set: such a command does nothing, every other is the driver's own.
for word in "$@"; do
  [ "$word" = -c ] && exit 0
done
exec {program} "$@"
"""


def no_compute_mode(program: str) -> bytes:
    """A script in place of nvidia-smi. `program`: the driver's own, as the shell would find it."""
    return _NO_COMPUTE_MODE.format(program=program).encode()


def load(
    harness: Harness,
    repository: str,
    programs: Mapping[str, Path],
    started: Iterable[str],
    made: Mapping[str, bytes],
) -> str:
    """Gives it to the cluster. `programs`: by their paths in the image; `started`: this machine's, by name; `made`:
    further files, executable if below a `bin`.

    Returns the image's name. Raises LocalClusterError if this machine lacks a tool.
    """
    archive = WORK / "peer.tar"
    name = _build(repository, archive, programs, started, made)
    cluster.load_images(harness.layout, [archive])
    archive.unlink()
    return name


def _build(
    repository: str, archive: Path, programs: Mapping[str, Path], started: Iterable[str], made: Mapping[str, bytes]
) -> str:
    tree = Tree()
    paths = {name: shutil.which(name) for name in started}
    if lacking := [name for name, path in paths.items() if path is None]:
        raise LocalClusterError(f"this machine lacks {', '.join(lacking)}")
    machines_own = [SHELL, *(Path(path) for path in paths.values() if path)]
    needed = tools.libraries_of([*machines_own, *programs.values()])
    beside = [path.with_name(name) for path in needed if path.name == "libc.so.6" for name in OF_THE_DRIVER]
    for path in (*machines_own, *needed, *beside):
        tree.add(path)
    tree.files |= programs
    config = host_image.for_this_machine({"Env": [f"PATH={PATH}"], "User": "0:0"})
    return host_image.write_image(archive, repository, config, tree, made)
