"""A folder of the node with the machine's driver and nothing else, laid out as NVIDIA's DRA driver looks for it.

The driver of such a machine may lie below /usr/local/nvidia, with scripts or absolute links to it in /usr: no container
that has the machine's root mounted at another path can follow those.
"""

import platform
import shutil
from pathlib import Path

from gpushare.agent.gpus import driver
from measurements.peers.ways import image

BESIDE = f"lib/{platform.machine()}-linux-gnu"
LIBRARIES = f"usr/{BESIDE}"
"""A client's loader searches this folder."""
OTHER_NAME = "usr/lib64"
"""The pod of the MPS daemon searches this one."""
NVML = "libnvidia-ml.so.1"
PROGRAMS = "usr/bin"
SMI, OWN_SMI = "nvidia-smi", "nvidia-smi.program"
STAND_IN = image.no_compute_mode(f'"${{0%/*}}/{OWN_SMI}"')


def make(machine: Path, folder: Path) -> bool:
    """Writes `folder` from the driver below `machine`. Returns whether there is one. What is complete stays."""
    if (folder / PROGRAMS / SMI).exists():
        return True
    installed = driver.find("/", machine)
    libraries = {name: machine / path.lstrip("/") for name, path in installed.libraries.items()}
    if libraries and NVML not in libraries and (nvml := driver.nvml_library(machine)):
        libraries[NVML] = nvml
    aside = folder.with_suffix(".new")
    for left in (aside, folder):
        shutil.rmtree(left, ignore_errors=True)
    for path in (LIBRARIES, PROGRAMS):
        (aside / path).mkdir(parents=True)
    (aside / OTHER_NAME).symlink_to(BESIDE)
    for name, library in libraries.items():
        _library(library, aside / LIBRARIES, name)
    programs = {**installed.executables, **({OWN_SMI: installed.tools[SMI]} if SMI in installed.tools else {})}
    for name, path in programs.items():
        shutil.copy(machine / path.lstrip("/"), aside / PROGRAMS / name)
    if libraries:
        (aside / PROGRAMS / SMI).write_bytes(STAND_IN)
        (aside / PROGRAMS / SMI).chmod(0o755)
    aside.rename(folder)
    return bool(libraries)


def _library(source: Path, folder: Path, name: str) -> None:
    """The file by its own name, which has the driver's version, and a link for each other name."""
    if not (folder / source.name).exists():
        shutil.copy(source, folder)
    if name != source.name:
        (folder / name).symlink_to(source.name)
