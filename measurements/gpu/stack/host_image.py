"""The image of the clients, made on the machine from its own Python: CuPy and CUDA are GBs that cannot travel."""

import io
import os
import platform
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare.agent.gpus.driver import control_program_dir
from gpushare.mps.control import PROGRAM
from localcluster.paths import REPOSITORY
from measurements.gpu.stack import oci_archive
from measurements.gpu.stack.host_tree import Tree, is_of_driver, of_this_machine

SOURCES = ("operator/gpushare", "workload/gpushare_workload")
MAKERS = tuple(f"measurements/gpu/stack/{name}.py" for name in ("host_image", "host_tree", "oci_archive"))
"""What else the image depends on."""
SOURCE_ROOT = "/opt/gpushare/src"
USER = 65532
FOLDERS = ("tmp", "etc", "proc", "sys", "dev", "run", "usr/lib64", f"usr/lib/{platform.machine()}-linux-gnu")
"""The last two: the driver's libraries are bound into them when a container starts."""
TOOL_KIT_VARIABLES = ("CUDA_PATH", "CUDA_HOME")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_PROGRAM = """#!{python}
from gpushare_workload.cli import main
if __name__ == "__main__":
    raise SystemExit(main())
"""


def build(archive: Path, simulated: bool) -> str:
    """Writes the archive. Returns the image's name, whose tag is a hash of the content. Raises LocalClusterError."""
    tree = of_this_machine(simulated)
    for source in SOURCES:
        for path in (REPOSITORY / source).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                tree.files[f"{SOURCE_ROOT}/{path.relative_to(REPOSITORY)}"] = path
    # No container gets the control program from us; a tenant may bring it along all the same.
    if programs := control_program_dir(Path("/")):
        tree.files[f"/opt/gpushare/bin/{PROGRAM}"] = programs / PROGRAM
    made = {"opt/gpushare/bin/gpushare-workload": _PROGRAM.format(python=sys.executable).encode()}
    return write_image(archive, "gpushare-workload", configuration(tree), tree, made)


def write_image(
    archive: Path, repository: str, config: Mapping[str, Any], tree: Tree, made: Mapping[str, bytes]
) -> str:
    """Writes an image of one layer. `made`: further files by their paths, executable if below a `bin`.

    Returns its name, whose tag is a hash of the layer.
    """
    layer = archive.with_suffix(".layer")
    write_layer(layer, tree, made)
    tree_layer = oci_archive.layer_of(layer)
    name = f"localhost/{repository}:host-{tree_layer.digest[:16]}"
    oci_archive.write(archive, name, config, [tree_layer])
    layer.unlink()
    return name


def configuration(tree: Tree) -> dict[str, Any]:
    """The image's configuration as in the Dockerfile, with the directories of libraries that the loader would not
    find."""
    searched = sorted(
        {str(Path(path).parent) for path in tree.files if ".so" in Path(path).name and _is_tool_kit(path)}
    )
    environment = {
        "PATH": "/opt/gpushare/bin:/opt/gpushare/driver/bin:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{SOURCE_ROOT}/operator:{SOURCE_ROOT}/workload",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "CUPY_CACHE_DIR": "/tmp/cupy",
        **({"LD_LIBRARY_PATH": ":".join(searched)} if searched else {}),
        **{name: os.environ[name] for name in TOOL_KIT_VARIABLES if name in os.environ},
    }
    settings = {
        "Entrypoint": ["/opt/gpushare/bin/gpushare-workload"],
        "User": f"{USER}:{USER}",
        "Env": [f"{key}={value}" for key, value in environment.items()],
    }
    return for_this_machine(settings)


def for_this_machine(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An image configuration with these settings of its containers."""
    return {"architecture": _MACHINES[platform.machine()], "os": "linux", "config": dict(settings)}


def _is_tool_kit(path: str) -> bool:
    """Tells whether the file belongs to CUDA and is outside of the directories that Python imports from."""
    return "cuda" in path and "site-packages" not in path and not is_of_driver(path)


def write_layer(path: Path, tree: Tree, made: Mapping[str, bytes]) -> None:
    users = {
        "etc/passwd": f"root:x:0:0::/:\ngpushare:x:{USER}:{USER}::/tmp:/usr/sbin/nologin\n".encode(),
        "etc/group": f"root:x:0:\ngpushare:x:{USER}:\n".encode(),
    }
    with tarfile.open(path, "w") as tar:
        writer = _Writer(tar, set(tree.links))
        for folder in FOLDERS:
            writer.folder(f"/{folder}")
        for name, target in sorted(tree.links.items()):
            writer.link(name, target)
        for name, source in sorted(tree.files.items()):
            writer.file(name, source.read_bytes(), bool(source.stat().st_mode & 0o100))
        for name, content in {**users, **made}.items():
            writer.file(f"/{name}", content, executable="/bin/" in name)


class _Writer:
    """Writes files that everybody may read, whatever their mode on the machine: containers run as other users."""

    def __init__(self, tar: tarfile.TarFile, links: set[str]) -> None:
        self._tar = tar
        self._there = links | {"/"}

    def folder(self, path: str) -> None:
        if path in self._there:
            return
        self.folder(str(Path(path).parent))
        self._there.add(path)
        self._add(path, tarfile.DIRTYPE, mode=0o1777 if path == "/tmp" else 0o755)

    def link(self, path: str, target: str) -> None:
        self.folder(str(Path(path).parent))
        self._add(path, tarfile.SYMTYPE, target=target)

    def file(self, path: str, content: bytes, executable: bool) -> None:
        self.folder(str(Path(path).parent))
        self._add(path, tarfile.REGTYPE, content, 0o755 if executable else 0o644)

    def _add(self, path: str, kind: bytes, content: bytes = b"", mode: int = 0o777, target: str = "") -> None:
        member = tarfile.TarInfo(path.lstrip("/"))
        member.type, member.mode, member.linkname, member.size = kind, mode, target, len(content)
        self._tar.addfile(member, io.BytesIO(content))
