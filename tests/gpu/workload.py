#!/usr/bin/env python3
"""The workload on a real GPU under a private MPS daemon: limits that hold, four ways to run 100 tasks, departures.

    PYTHONPATH=operator:workload python3 tests/gpu/workload.py docs/results/h200/workload.json

Run as root on a machine with a GPU that nobody uses, CuPy and nvidia-ml-py. Ends every process that it started. Exit
code 0 where everything was as expected; the results, with the environment that they were measured in, are written
either way.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpushare.mps.control import ControlProgram

THREADS, MEMORY_MIB = 25, 4096
NEIGHBOURS = 3
KERNEL_MS = 200
READY_SECONDS = 90


class Bench:
    """A private control daemon, and workload processes as its clients."""

    def __init__(self, directory: Path) -> None:
        self.pipe, self.log = directory / "pipe", directory / "log"
        for path in (self.pipe, self.log):
            path.mkdir()
        self.daemon_environment = dict(
            os.environ, CUDA_MPS_PIPE_DIRECTORY=str(self.pipe), CUDA_MPS_LOG_DIRECTORY=str(self.log)
        )
        self.environment = self.daemon_environment | {"CUPY_CACHE_DIR": str(directory / "cupy")}
        self.control = ControlProgram(None, self.pipe, self.log, 10)

    def __enter__(self) -> "Bench":
        command = ["nvidia-cuda-mps-control", "-d", "-multiuser-server"]
        subprocess.run(command, env=self.daemon_environment, check=True, timeout=30)
        self.control.set_default_memory(2 * MEMORY_MIB)
        self.control.set_default_threads(2 * THREADS)
        self.control.start_server()
        return self

    def __exit__(self, *_: object) -> None:
        self.control.quit(3)

    def granted(self, threads: int = THREADS, told: int | None = None) -> dict[str, str]:
        """The environment of a client. `told`: what GPUSHARE_THREADS says, where that shall differ from the limit."""
        return self.environment | {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(threads),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={MEMORY_MIB}M",
            "GPUSHARE_SHARE": "bench",
            "GPUSHARE_THREADS": str(told or threads),
            "GPUSHARE_MEMORY_BYTES": str(MEMORY_MIB << 20),
        }

    def start(self, *arguments: str, environment: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gpushare_workload.cli", "run", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def finish(self, *arguments: str, environment: dict[str, str], seconds: float = 300) -> dict[str, Any]:
        process = self.start(*arguments, environment=environment)
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        return {"exit_code": process.returncode, "events": [json.loads(line) for line in out.splitlines()]}


def wait_event(process: subprocess.Popen[str], event: str) -> None:
    assert process.stdout is not None
    end = time.monotonic() + READY_SECONDS
    seen = []
    for line in process.stdout:
        seen.append(line)
        if json.loads(line)["event"] == event:
            return
        if time.monotonic() > end:
            break
    raise RuntimeError(f"no {event} from process {process.pid}: {''.join(seen)}")


def departure(guarded: bool) -> dict[str, Any]:
    """A victim dies in mid-kernel beside neighbours; `guarded`: it is ended through the daemon first."""
    with tempfile.TemporaryDirectory() as name, Bench(Path(name)) as bench:
        environment = bench.granted()
        neighbours = [
            bench.start("depart", "--report-every", "0.2", environment=environment) for _ in range(NEIGHBOURS)
        ]
        victim = bench.start("depart", "--role", "victim", "--kernel-ms", str(KERNEL_MS), environment=environment)
        for process in neighbours:
            wait_event(process, "progress")
        wait_event(victim, "started")
        time.sleep(1.5 * KERNEL_MS / 1000 + 0.5)
        terminated = guarded and any(
            bench.control.terminate_client(it, victim.pid) for it in bench.control.server_list()
        )
        victim.kill()
        victim.wait(timeout=30)
        time.sleep(2)
        for process in neighbours:
            process.send_signal(signal.SIGTERM)
        outcomes = []
        for process in neighbours:
            out, _ = process.communicate(timeout=60)
            outcomes.append({"exit_code": process.returncode, "last": json.loads(out.splitlines()[-1])})
        return {"guarded": guarded, "terminated": terminated, "kernel_ms": KERNEL_MS, "neighbours": outcomes}


def environment_block() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_mode", "--format=csv,noheader"]
    import cupy

    return {
        "gpu": subprocess.run(query, capture_output=True, text=True, timeout=60).stdout.strip(),
        "cupy": cupy.__version__,
        "cuda_runtime": str(cupy.cuda.runtime.runtimeGetVersion()),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main(path: Path) -> int:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, Bench(Path(name)) as bench:
        results["limits_hold"] = bench.finish("limits", environment=bench.granted())
        results["limits_told_otherwise"] = bench.finish("limits", environment=bench.granted(told=50))
        results["pool_of_100_tasks"] = bench.finish(
            "pool", "--tasks", "100", "--workers", "8", environment=bench.granted()
        )
    results["departure_guarded"] = departure(guarded=True)
    results["departure_unguarded"] = departure(guarded=False)
    results["environment"] = environment_block()
    expected = {
        "limits_hold": results["limits_hold"]["exit_code"] == 0,
        "limits_told_otherwise": results["limits_told_otherwise"]["exit_code"] == 1,
        "pool_of_100_tasks": results["pool_of_100_tasks"]["exit_code"] == 0,
        "departure_guarded": all(it["exit_code"] == 0 for it in results["departure_guarded"]["neighbours"]),
        "departure_unguarded": all(
            it["last"].get("code") == 700 for it in results["departure_unguarded"]["neighbours"]
        ),
    }
    results["as_expected"] = expected
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(expected, indent=2))
    return 0 if all(expected.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
