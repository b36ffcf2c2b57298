"""A program that uses its GPU otherwise than granted; runs in a container of the workload's image, by its text.

The memory limit that MPS enforces is lost as in real life: by a variable that the program itself garbles. Arguments:
MiB for each process, number of processes, and what to do at the end of the contexts: `exit` or `linger`, which ignores
SIGTERM as well.
"""

import json
import os
import signal
import subprocess
import sys
import time

from gpushare.simulation.client import CudaError, SimulatedContext

KERNEL_MS = 200.0


def emit(event: str, **values: object) -> None:
    """Writes the line in one write: the container's processes share its log."""
    os.write(1, json.dumps({"event": event, "at": time.time(), **values}).encode() + b"\n")


def main(mib: int, processes: int, finally_do: str) -> int:
    os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "garbage"
    for _ in range(processes - 1):
        subprocess.Popen([sys.executable, "-c", os.environ["PROGRAM"], str(mib), "1", finally_do])
    context = SimulatedContext.create()
    if mib:
        context.alloc(mib << 20)
    emit("started")
    try:
        while True:
            context.launch(KERNEL_MS)
            context.synchronize()
    except CudaError as error:
        emit("gpu-error", code=error.code)
        if finally_do == "linger":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while finally_do == "linger":
            time.sleep(1)
        return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
