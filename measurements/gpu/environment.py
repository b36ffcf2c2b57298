"""The machine and the versions behind a figure."""

import platform
import subprocess
import time
from typing import Any


def environment_block() -> dict[str, Any]:
    fields = "name,driver_version,memory.total,compute_mode,clocks.max.sm,clocks.max.mem,power.limit"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    versions = {"date": date, "python": platform.python_version(), "kernel": platform.release()}
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False).stdout.splitlines()
        import cupy

        versions |= {"cupy": cupy.__version__, "cuda_runtime": str(cupy.cuda.runtime.runtimeGetVersion())}
    except (OSError, ImportError) as error:
        return {"gpus": f"none: {error}", **versions}
    return {"gpus": gpus, "gpu_fields": fields, **versions}
