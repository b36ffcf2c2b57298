"""What observation costs the node's agent: `python -m measurements.scale.agent.observe [GPUS CLIENTS READINGS]`.

Real processes with real /proc entries, as many as GPUS × CLIENTS (default 8 × 48), behind an NVML that answers from
memory: so what is measured is ours, from NVML's answer to the findings, not the driver. Each process is put into a
container of a pod of its own by the cgroup that it is said to have, and one in sixteen is above its grant.
"""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpushare.agent.gpus.view import GpuView
from gpushare.agent.observe.usage_reader import TakenGpu, UsageSources
from gpushare.agent.observe.violations import Judgement, UsageMonitor
from gpushare.api.compute_mode import ComputeMode
from gpushare.api.names import CLIENT_PIPE_DIR
from gpushare.mps.clock import boot_clock
from gpushare.nvml.types import GpuInfo, GpuProcess, GpuProcesses
from tests.unit.agent.observed_pods import container_id, pod, share, uid


class CountingEnforcer:
    def was_terminated(self, *_: Any) -> bool:
        return False

    def enforce(self, judgement: Judgement, terminating: Any) -> None:
        self.confirmed = len(judgement.confirmed)


def start_processes(count: int, proc: Path) -> list[int]:
    """PIDs of processes that sleep; stat is the kernel's own, the cgroup that of a container of a pod."""
    pids = []
    for number in range(count):
        pid = subprocess.Popen(["sleep", "3600"]).pid
        entry = proc / str(pid)
        entry.mkdir()
        (entry / "stat").symlink_to(f"/proc/{pid}/stat")
        cgroup = f"/kubepods/burstable/pod{uid(number)}/{container_id(number * 10)}"
        (entry / "cgroup").write_text(f"12:memory:{cgroup}\n4:cpu,cpuacct:{cgroup}\n0::{cgroup}\n")
        (entry / "mountinfo").write_text(f"36 22 0:31 / {CLIENT_PIPE_DIR} ro - tmpfs tmpfs rw\n")
        pids.append(pid)
    return pids


def views(gpus: int, pids: list[int]) -> dict[str, GpuView]:
    by_uuid = {}
    for index in range(gpus):
        info = GpuInfo(f"GPU-{index}", index, index, "NVIDIA H200", 143155, 132, "9.0", None, False)
        clients = [GpuProcess(pid, 9000 if pid % 16 == 0 else 300) for pid in pids[index::gpus]]
        listed = GpuProcesses(tuple(clients), ())
        by_uuid[info.uuid] = GpuView(info, ComputeMode.EXCLUSIVE_PROCESS, listed, boot_clock())
    return by_uuid


def taken(gpus: int) -> dict[str, TakenGpu]:
    return {f"GPU-{index}": TakenGpu("a", None) for index in range(gpus)}


def measure(gpus: int, clients: int, readings: int, directory: Path) -> None:
    proc = directory / "proc"
    proc.mkdir()
    pids = start_processes(gpus * clients, proc)
    try:
        asyncio.run(observe(gpus, pids, readings, directory))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


async def observe(gpus: int, pids: list[int], readings: int, directory: Path) -> None:
    pods, enforcer = [pod(number) for number in range(len(pids))], CountingEnforcer()
    places = {("team", f"pod-{number}", "app"): ("a", f"GPU-{number % gpus}") for number in range(len(pids))}
    monitor = UsageMonitor(boot_clock, enforcer, directory / "proc", 10.0)
    wall, spent = [], []
    for _ in range(readings + 1):
        seen = views(gpus, pids)
        started, before = time.monotonic(), time.process_time()
        await monitor.observe(UsageSources(seen, taken(gpus), pods, {"a": share()}, places, {}), list)
        wall.append((time.monotonic() - started) * 1000)
        spent.append((time.process_time() - before) * 1000)
    later = sorted(spent[1:])
    print(f"{len(pids)} clients on {gpus} GPUs, {readings} readings; {enforcer.confirmed} above their grant")
    print(f"first reading: {spent[0]:.1f} ms of CPU; later ones: median {later[len(later) // 2]:.1f} ms, ", end="")
    print(f"largest {later[-1]:.1f} ms (wall: median {sorted(wall[1:])[len(wall) // 2 - 1]:.1f} ms)")
    print(f"every 2 s that is {later[len(later) // 2] / 20:.2f} % of one core", end="; ")
    print(f"resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


def main() -> None:
    gpus, clients, readings = (int(word) for word in sys.argv[1:4]) if len(sys.argv) > 3 else (8, 48, 50)
    with tempfile.TemporaryDirectory() as directory:
        measure(gpus, clients, readings, Path(directory))


if __name__ == "__main__":
    main()
