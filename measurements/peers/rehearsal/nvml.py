"""What NVIDIA's device plugin finds of a driver where GPUs are simulated: NVML, and a control program without a daemon.

The plugin and its MPS control daemon then start, offer the GPUs and place pods as with a real driver. Clients compute
on the simulated GPUs, but meet no MPS daemon and so no limits.
"""

import platform
import subprocess
import tempfile
from pathlib import Path

from localcluster.errors import LocalClusterError
from measurements.gpu.stack.bring import SIMULATED_GPU
from measurements.peers.rehearsal.driver import uuids

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = f"usr/lib/{platform.machine()}-linux-gnu/libnvidia-ml.so.1"
CONTROL = "usr/local/bin/nvidia-cuda-mps-control"
_CONTROL = """#!/bin/sh
# `-d` starts nothing but the log, which NVIDIA's program follows; any other call reads a command and takes it.
if [ "$1" = -d ]; then
  : >"$CUDA_MPS_LOG_DIRECTORY/control.log"
else
  read -r _ || :
fi
"""
PATCHED = {
    "GPUs": "simulated: a library stands in for NVML, and a script that takes every command for MPS' control program; "
    "there is no MPS daemon"
}


def files(gpus: int) -> dict[str, bytes]:
    """The files by their paths in the image. Raises LocalClusterError with the compiler's words."""
    return {LIBRARY: nvml(gpus), CONTROL: _CONTROL.encode()}


def nvml(gpus: int) -> bytes:
    """A shared library with that many GPUs. Raises LocalClusterError with the compiler's words."""
    values = {
        "GPUS": gpus,
        "UUIDS": ",".join(f'"{uuid}"' for uuid in uuids(gpus)),
        "PRODUCT": f'"{SIMULATED_GPU["product"]}"',
        "MEMORY_MIB": SIMULATED_GPU["memory_mib"],
    }
    told = [f"-D{name}={value}" for name, value in values.items()]
    options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    with tempfile.TemporaryDirectory() as name:
        library = Path(name) / "library"
        command = ["cc", *options, *told, "-o", str(library), str(SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        except FileNotFoundError as error:
            raise LocalClusterError("a simulated NVML is compiled with `cc`, which is not installed") from error
        except subprocess.CalledProcessError as error:
            raise LocalClusterError(f"{SOURCE.name} does not compile: {error.stderr[-800:]}") from error
        return library.read_bytes()
