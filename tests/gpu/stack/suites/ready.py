"""How long a share takes to become Ready, over one GPU and over all of the machine's, beside bare daemons of all."""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpushare.mps.control import PROGRAM, ControlProgram
from tests.cluster.harness import Harness
from tests.cluster.time_to_ready import times_to_ready
from tests.gpu.stack import bring
from tests.gpu.stack.suite import Findings
from tests.gpu.stack.suites import parts

ROUNDS, ROUNDS_LIMITED = 5, 3
MOST_SECONDS = 5.0
"""By the median, for any number of GPUs."""
LIMIT = "250m"
"""Of an MPS pod's CPU, for comparison: by default there is none."""
SERVER_SECONDS = 30.0


def measure(harness: Harness, findings: Findings) -> None:
    gpus = [it["uuid"] for it in harness.gpu_node()["status"]["gpus"]]
    findings.figures["gpus"] = len(gpus)
    if not findings.simulated:
        with findings.phase("bare daemons"):
            findings.figures["bare_daemons"] = _figure([_bare(gpus) for _ in range(ROUNDS)])
    for name, number in {"one_gpu": 1, "all_gpus": len(gpus)}.items():
        with findings.phase(name):
            times = times_to_ready(harness, number, ROUNDS, per_node=number)
            findings.figures[name] = _figure(times)
            within = f"a share over {'all GPUs' if number > 1 else 'one GPU'} is Ready within {MOST_SECONDS:.0f} s"
            findings.expect(within, findings.simulated or findings.figures[name]["seconds"]["median"] <= MOST_SECONDS)
    with findings.phase("with a CPU limit"):
        bring.upgrade(f"--set-string=mps.resources.cpuLimit={LIMIT}")
        try:
            times = times_to_ready(harness, len(gpus), ROUNDS_LIMITED, per_node=len(gpus))
            findings.figures["all_gpus_with_a_cpu_limit"] = {"limit": LIMIT, **_figure(times)}
        finally:
            bring.upgrade()


def _figure(seconds: Sequence[float]) -> dict[str, Any]:
    return {"seconds": parts.spread(seconds), "runs": [round(it, 2) for it in seconds]}


def _bare(uuids: Sequence[str]) -> float:
    """Seconds until each GPU has a daemon, started by hand, and an ACTIVE server. Ends them all."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(len(uuids)) as pool:
        folders = [Path(name) / uuid for uuid in uuids]
        for folder in folders:
            for each in (folder / "pipe", folder / "log"):
                each.mkdir(parents=True)
        controls = [ControlProgram(None, folder / "pipe", folder / "log", SERVER_SECONDS) for folder in folders]
        began = time.monotonic()
        try:
            list(pool.map(_serve, folders, uuids, controls))
            return time.monotonic() - began
        finally:
            list(pool.map(lambda control: control.quit(3), controls))


def _serve(folder: Path, uuid: str, control: ControlProgram) -> None:
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": uuid,
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }
    subprocess.run([PROGRAM, "-d", "-multiuser-server"], env=environment, check=True, timeout=SERVER_SECONDS)
    control.start_server()
    end = time.monotonic() + SERVER_SECONDS
    while not any(control.server_status(server) == "ACTIVE" for server in control.server_list()):
        if time.monotonic() > end:
            raise TimeoutError(f"no ACTIVE server on {uuid} within {SERVER_SECONDS:.0f} s")
        time.sleep(0.05)
