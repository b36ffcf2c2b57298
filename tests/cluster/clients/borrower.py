"""A program that takes GPU memory in steps, and asks again when there is none; runs in a container, by its text.

Arguments: MiB of each step. It computes until its contexts are ended.
"""

import json
import os
import sys
import time

from gpushare_workload.backend import Backend, GpuError, OutOfMemoryError, open_backend

KERNEL_MS = 200.0


def emit(event: str, **values: object) -> None:
    os.write(1, json.dumps({"event": event, "at": time.time(), **values}).encode() + b"\n")


def take(backend: Backend, mib: int) -> None:
    """Takes memory as a program that catches CUDA's error and tries again."""
    refused = 0
    while True:
        try:
            backend.allocate(mib << 20)
        except OutOfMemoryError:
            refused += 1
            if refused == 1:
                emit("refused", mib=mib)
            time.sleep(0.5)
        else:
            emit("taken", mib=mib, refused=refused)
            return


def main(steps: list[int]) -> int:
    backend = open_backend("auto")
    emit("started", limit=os.environ.get("GPUSHARE_MEMORY_LIMIT_BYTES"))
    try:
        for mib in steps:
            take(backend, mib)
        while True:
            backend.spin(KERNEL_MS)
            backend.synchronize()
            emit("check")
    except GpuError as error:
        emit("gpu-error", code=error.code)
        return 1


if __name__ == "__main__":
    sys.exit(main([int(text) for text in sys.argv[1:]]))
