"""The files of this machine that a client of the workload needs: Python, its modules, and the libraries it loads.

All files keep their paths, links included, so that programs find them in a container too. The driver's own files are
left out: a container gets those of its node with its slot.
"""

import fnmatch
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path, PurePosixPath

from gpushare.agent.gpus.driver import LIBRARIES
from localcluster.errors import LocalClusterError
from measurements.gpu.stack import tools

DISTRIBUTIONS = ("numpy", "rich")
ON_A_GPU = ("cupy-cuda13x", "cupy-cuda12x", "nvidia-ml-py")
"""Those of them that are installed."""
OUR_OWN = "gpushare"
"""Comes from the work tree."""
DRIVER_DIRECTORY = "/usr/local/nvidia/"
TOOL_KIT = Path("/usr/local/cuda")
"""The directory in which programs look for CUDA's headers, if it is not installed as Python packages."""
NOT_NEEDED = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
}
LINK_HOPS = 40
PROBE_SECONDS = 180
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PROBE = """
import json, os, pathlib, runpy, sys
os.environ["GPUSHARE_THREADS"] = "100"
sys.argv = ["gpushare-workload", "run", "limits", "--throughput", "0"]
if {simulated}:
    import gpushare_workload.backend.on_numpy.backend, gpushare_workload.cli
else:
    import cupyx
    try:
        runpy.run_module("gpushare_workload.cli", run_name="__main__")
    except SystemExit as end:
        assert not end.code, f"the workload ended with {{end.code}}"
mapped = {{line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if ".so" in line}}
modules = {{name.partition(".")[0] for name in sys.modules}}
print(json.dumps([sorted(mapped), sorted(modules)]))
"""


@dataclass
class Tree:
    """Paths in a container: files with their sources on this machine, and links with their targets."""

    files: dict[str, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        """Adds a file, or a directory with all below it, and each link on its path. Missing paths are skipped."""
        real = self._follow(path)
        if real is None:
            return
        if real.is_dir():
            for entry in real.iterdir():
                if entry.name not in NOT_NEEDED and not entry.name.startswith("config-3"):
                    self.add(entry)
        elif real.is_file() and not is_of_driver(str(real)):
            self.files[str(real)] = real

    def _follow(self, path: Path) -> Path | None:
        """The target of `path`; no part of the result is a link."""
        pending, reached, hops = list(reversed(path.parts[1:])), Path("/"), 0
        while pending:
            part = pending.pop()
            here = reached.parent if part == ".." else reached / part
            if part == ".." or not here.is_symlink():
                reached = here
                continue
            hops += 1
            if hops > LINK_HOPS:
                return None
            target = here.readlink()
            self.links[str(here)] = str(target)
            reached = Path("/") if target.is_absolute() else reached
            pending += reversed([part for part in target.parts if part != "/"])
        return reached if reached.exists() else None


def is_of_driver(path: str) -> bool:
    """Tells whether a library belongs to the driver, not to CUDA's tool kit."""
    name = PurePosixPath(path).name
    return path.startswith(DRIVER_DIRECTORY) or any(fnmatch.fnmatchcase(name, pattern) for pattern in LIBRARIES)


def of_this_machine(simulated: bool) -> Tree:
    """Raises LocalClusterError if the workload does not run here: it would not run in a container either."""
    loaded, modules = _loaded(simulated)
    tree = Tree()
    python = Path(sys.executable)
    for path in (python, Path(sys.prefix) / "pyvenv.cfg", Path(sysconfig.get_path("stdlib"))):
        tree.add(path)
    for path in _installed([*DISTRIBUTIONS, *([] if simulated else ON_A_GPU), *_distributions(modules)]):
        tree.add(path)
    for path in (*loaded, *_beside(loaded)):
        tree.add(path)
    programs = [
        python,
        *(path for path in tree.files.values() if path.name.endswith(".so") and "lib-dynload" in path.parts),
    ]
    for path in tools.libraries_of([*programs, *loaded]):
        tree.add(path)
    return tree


def _loaded(simulated: bool) -> tuple[list[Path], list[str]]:
    """The shared libraries that the workload has mapped after it has used the GPU, and its modules."""
    probe = [sys.executable, "-c", _PROBE.format(simulated=simulated)]
    # A kernel that was compiled before would need no compiler.
    with tempfile.TemporaryDirectory() as empty:
        environment = dict(os.environ, CUPY_CACHE_DIR=empty)
        done = subprocess.run(probe, env=environment, capture_output=True, text=True, timeout=PROBE_SECONDS)
    if done.returncode != 0:
        raise LocalClusterError(f"the workload does not run on this machine: {done.stderr.strip()[-800:]}")
    mapped, modules = json.loads(done.stdout.splitlines()[-1])
    return [Path(path) for path in mapped if not is_of_driver(path)], modules


def _distributions(modules: Iterable[str]) -> list[str]:
    """The distributions of these modules, including those that a program imports without requiring them."""
    known = metadata.packages_distributions()
    return sorted({name for module in modules for name in known.get(module, ()) if name != OUR_OWN})


def _beside(loaded: Iterable[Path]) -> list[Path]:
    """The other names of these libraries, and the files of CUDA's compiler: built-ins, headers, and the libraries for
    kernels that start kernels."""
    files: list[Path] = []
    for library in loaded:
        files += library.parent.glob(f"{library.name.partition('.so')[0]}.so*")
        if library.name.startswith("libnvrtc"):
            files += library.parent.glob("libnvrtc*")
            files.append(library.parent / "libcudadevrt.a")
            files += [parent / "include" for parent in library.parents if (parent / "include" / "cuda_fp16.h").exists()]
            if TOOL_KIT.exists() and library.is_relative_to(TOOL_KIT.resolve()):
                files.append(TOOL_KIT / "include")
    return files


def _installed(names: Iterable[str]) -> list[Path]:
    """The files of these distributions and of those that they require, as far as they are installed."""
    pending, seen, paths = list(names), set[str](), list[Path]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        pending += [required for text in distribution.requires or () if (required := requirement_name(text))]
        paths += [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    return paths


def requirement_name(text: str) -> str:
    """The name in a requirement (PEP 508); empty if only an extra needs it."""
    name = _NAME.match(text)
    return "" if name is None or "extra ==" in text else name[0]
