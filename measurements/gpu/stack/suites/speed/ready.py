"""How long a share takes to become Ready, over one GPU and over all of the machine's, in turns with bare daemons.

A round is a share, and then daemons of as many GPUs that are started by hand, all at once, without gpushare. Then come
shares over all GPUs with a CPU limit on MPS pods, which there is not by default. At last, how long clients of a share
over all GPUs take to compute: one alone, as many at once as one GPU takes, and as many as all take.
"""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpushare.agent.gpus.driver import control_program_dir
from gpushare.mps.control import PROGRAM, ControlError, ControlProgram, daemon_environment
from measurements.gpu.stack import bring
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from measurements.gpu.stack.suites.speed import costs
from tests.cluster.harness import Harness
from tests.cluster.time_to_ready import seconds_to_ready, wait_for_free_gpus

ROUNDS, ROUNDS_LIMITED = 5, 3
MOST_SECONDS = 5.0
"""What is wanted, by the median, whatever the number of GPUs."""
LIMIT = "250m"
SERVER_SECONDS = 30.0
CLIENTS, CLIENTS_PER_GPU, CLIENT_ROUNDS = "clients", 6, 3


def measure(harness: Harness, findings: Findings) -> None:
    gpus = [gpu["uuid"] for gpu in harness.gpu_node()["status"]["gpus"]]
    rows = findings.figures.setdefault("shares", [])
    for number in sorted({1, len(gpus)}):
        with findings.phase(f"GPUs: {number}"):
            rows.append({"gpus": number, **_in_turns(harness, gpus[:number], findings.simulated)})
            fast = findings.simulated or rows[-1]["ready"]["seconds"]["median"] <= MOST_SECONDS
            findings.expect(f"a share is Ready within {MOST_SECONDS:.0f} s, whatever the number of GPUs", fast)
    with findings.phase("with a CPU limit"):
        bring.upgrade(f"--set-string=mps.resources.cpuLimit={LIMIT}")
        try:
            times = [_ready(harness, len(gpus)) for _ in range(ROUNDS_LIMITED)]
            rows.append({"gpus": len(gpus), "cpu_limit": LIMIT, "ready": _figure(times)})
        finally:
            bring.upgrade()
    with findings.phase("clients"):
        findings.figures["clients"] = _clients(harness, len(gpus))


def _clients(harness: Harness, gpus: int) -> dict[str, Any]:
    """Times by the number of pods at once: seconds from the request that creates a pod until it has computed, over
    all rounds."""
    most = gpus * CLIENTS_PER_GPU
    runs: dict[int, list[dict[str, Any]]] = {}
    with harness.share(CLIENTS, per_gpu=CLIENTS_PER_GPU, per_node=gpus) as share, harness.namespace() as tenant:
        share.wait_capacity(most)
        for number in range(CLIENT_ROUNDS):
            for count in (1, CLIENTS_PER_GPU, most):
                prefix = f"round-{number}-of-{count}"
                runs.setdefault(count, []).append(costs.starts(tenant, prefix, count, together=True, share=CLIENTS))
                tenant.delete_pods()
    return {
        str(count): {
            "first_kernel_ended": parts.spread([run["first_kernel_ended"]["largest"] for run in some]),
            "runs": some,
        }
        for count, some in runs.items()
    }


def _in_turns(harness: Harness, uuids: Sequence[str], simulated: bool) -> dict[str, Any]:
    ready, bare = [], []
    for _ in range(ROUNDS):
        ready.append(_ready(harness, len(uuids)))
        if not simulated:
            wait_for_free_gpus(harness)
            bare.append(_bare(uuids))
    return {"ready": _figure(ready), **({"bare_daemons": _figure(bare)} if bare else {})}


def _ready(harness: Harness, gpus: int) -> float:
    wait_for_free_gpus(harness)
    return seconds_to_ready(harness, gpus, per_node=gpus)


def _figure(seconds: Sequence[float]) -> dict[str, Any]:
    return {"seconds": parts.spread(seconds), "runs": [round(value, 2) for value in seconds]}


def _bare(uuids: Sequence[str]) -> float:
    """Seconds until each GPU has a daemon, started by hand, and an ACTIVE server. Ends them all, whatever happens."""
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        with ThreadPoolExecutor(len(uuids)) as pool:
            serving = [pool.submit(_serve, Path(name) / uuid, uuid) for uuid in uuids]
        seconds = time.monotonic() - began
        for uuid in uuids:
            with suppress(ControlError):  # such as that of a daemon that did not start
                _control(Path(name) / uuid).quit(3)
        for future in serving:
            future.result()
        return seconds


def _control(folder: Path) -> ControlProgram:
    return ControlProgram(control_program_dir(Path("/")), folder / "pipe", folder / "log", SERVER_SECONDS)


def _serve(folder: Path, uuid: str) -> None:
    for each in (folder / "pipe", folder / "log"):
        each.mkdir(parents=True)
    programs = control_program_dir(Path("/"))
    environment = daemon_environment(programs, folder / "pipe", folder / "log") | {"CUDA_VISIBLE_DEVICES": uuid}
    command = [str(programs / PROGRAM) if programs else PROGRAM, "-d", "-multiuser-server"]
    subprocess.run(command, env=environment, check=True, timeout=SERVER_SECONDS)
    control = _control(folder)
    control.start_server()
    end = time.monotonic() + SERVER_SECONDS
    while not any(control.server_status(server) == "ACTIVE" for server in control.server_list()):
        if time.monotonic() > end:
            raise TimeoutError(f"no ACTIVE server on {uuid} within {SERVER_SECONDS:.0f} s")
        time.sleep(0.05)
