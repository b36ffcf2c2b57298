"""A service beside best effort on a real GPU: its latency by class of its neighbour, what classes cost, and results.

    python3 -m measurements.gpu.mps.classes OUT.json [PART …]  on an idle GPU, MPS on PATH, with PyTorch; 8 min

Bare processes of a private MPS daemon; tests/native/pages_broker.py stands in for the attach broker. PARTS are done in
their order, and OUT.json is written after each: `programs` (results with and without the library, while a protected
client is at work), `costs` (launches per second of a client that is counted), `cells` (a service's latency), `alone`
(best effort with its class and without, nobody else there). Ends all that it started.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from statistics import median
from typing import Any

from gpushare.agent.gpus import driver
from gpushare.api.names import FRONT_PREFIX
from measurements.gpu import ROOT
from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import PrivateMps
from tests.native.pages_broker import Page, Pages, PagesBroker, declared

HERE = Path(__file__).parent / "latency"
PERCENT = "MEASURED_SM_PERCENT"
MEMORY_MIB = 24576
LOAD = 0.4
REQUESTS = 3000
PARTS = ("programs", "costs", "cells", "alone")
NEIGHBOURS = ("training", "matmuls", "bandwidth")
NOT_INSTALLED = 77
START_SECONDS = 180
PAIRS, RATE_SECONDS = 4, 0.4
ALONE_TURNS, ALONE_SECONDS = 3, 2.0


@dataclass(frozen=True)
class Way:
    """How best effort runs beside the service. `sms`: percent while a protected client is active; 0: all."""

    cap: int = 100
    gives_way: bool = False
    sms: int = 0

    @property
    def kind(self) -> str:
        return "BestEffort" if self.gives_way else ""


WAYS = {
    "MPS plain": Way(),
    "cap 50": Way(cap=50),
    "gives way": Way(gives_way=True),
    "gives way, cap 50": Way(50, True),
    "gives way, green 50": Way(100, True, 50),
    "gives way, green 30": Way(100, True, 30),
}


class Program:
    """A process that answers lines with JSON."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put("")

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self, seconds: float = 120) -> dict[str, Any]:
        line = self._lines.get(timeout=seconds)
        if not line:
            raise RuntimeError(f"a program has ended with {self._process.wait(10)}: {self._process.args!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, line: str) -> dict[str, Any]:
        self.tell(line)
        return self.hear()

    def end(self) -> None:
        self._process.kill()
        self._process.wait(10)


class Stand:
    """The libraries as a container with classes has them, an MPS daemon, and a broker's stand-in."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.libraries, self.attach = directory / "libraries", directory / "attach"
        subprocess.run([ROOT / "native/build.sh", self.libraries], check=True, timeout=120)
        (self.libraries / "libcuda-classes.so.1").rename(self.libraries / "libcuda.so.1")
        (self.libraries / "libnvidia-ml.so.1").unlink()
        own = driver.find("/", Path("/")).libraries["libcuda.so.1"]
        self.to_link = directory / "driver"
        """Triton links a stub against what it finds here. Of a front library a linker sees nothing that it needs."""
        self.to_link.mkdir()
        (self.to_link / "libcuda.so.1").symlink_to(own)
        (self.libraries / f"{FRONT_PREFIX}libcuda.so.1").symlink_to(own)
        self.mps = stack.enter_context(PrivateMps(directory, threads=100, memory_mib=MEMORY_MIB))
        self.broker = stack.enter_context(
            PagesBroker(self.attach, sm_percent=lambda pid: int(declared(pid, PERCENT) or 0))
        )

    def environment(self, kind: str = "", cap: int = 100, sms: int = 0) -> dict[str, str]:
        """Of a client; `kind`: its class. Without one the driver's own library is loaded."""
        environment = self.mps.environment | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(cap)}
        if kind:
            path = f"{self.libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
            environment |= {"LD_LIBRARY_PATH": path, "TRITON_LIBCUDA_PATH": str(self.to_link)}
            environment |= {"GPUSHARE_CLASS": kind, "GPUSHARE_ATTACH": str(self.attach), PERCENT: str(sms)}
        return environment

    def counted(self, program: Program) -> dict[str, Any]:
        pages = self.broker.processes.get(program.pid)
        return {} if pages is None else shown(pages)


def shown(pages: Pages) -> dict[str, Any]:
    """What a page counts, times in seconds."""
    counted = pages.counted()
    seconds = {name: counted[name] / 1e9 for name in ("active", "gave_way")}
    counts = {name: counted[name] for name in ("launches", "held_back", "by_floor", "on_part", "unpaced")}
    longest = sorted(counted["longest"].items(), key=lambda item: -item[1])[:5]
    return {
        **seconds, **counts, "part_sms": counted["part_sms"], "all_sms": counted["all_sms"],
        "longest_ms": {name: duration / 1e6 for name, duration in longest},
    }  # fmt: skip


# Results


def work_now_and_then(page: Page, ended: threading.Event) -> None:
    """A protected client that is busy for 0.8 ms of each 2."""
    while not ended.is_set():
        page.set_word(True)
        time.sleep(0.0008)
        page.set_word(False, again=False)
        time.sleep(0.0012)


def programs(stand: Stand) -> dict[str, Any]:
    """Each program's digest without the library, as best effort with half of the SMs, and as a protected client."""
    names = json.loads(
        subprocess.run(
            [sys.executable, "-c", "import json, programs; print(json.dumps(list(programs.PROGRAMS)))"],
            cwd=HERE, capture_output=True, text=True, check=True, timeout=60,
        ).stdout
    )  # fmt: skip
    ways = {
        "driver's own": stand.environment(),
        "best effort": stand.environment("BestEffort", sms=50),
        "protected": stand.environment("Protected"),
    }
    page, ended, results = stand.broker.protected(), threading.Event(), {}
    at_work = threading.Thread(target=work_now_and_then, args=(page, ended))
    at_work.start()
    for name in names:
        started = {way: run_program(name, environment) for way, environment in ways.items()}
        rows = {way: result_of(process) for way, process in started.items()}
        for way, process in started.items():
            pages = stand.broker.processes.get(process.pid)
            rows[way] |= {} if pages is None else {"counted": shown(pages)}
        digests = {row.get("digest") for row in rows.values()}
        results[name] = {"same": len(digests) == 1 and None not in digests, **rows}
    ended.set()
    at_work.join()
    stand.broker.remove(page)
    return results


def run_program(name: str, environment: dict[str, str]) -> "subprocess.Popen[str]":
    command = [sys.executable, str(HERE / "programs.py"), name]
    caches = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "/tmp"))  # one for each: they are written side by side
    environment |= {"TRITON_CACHE_DIR": f"{caches}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor"}
    environment |= {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}  # it would choose kernels by how long they took
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(process: "subprocess.Popen[str]") -> dict[str, Any]:
    try:
        printed, complaint = process.communicate(timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"error": f"not done after {START_SECONDS} s"}
    if process.returncode == NOT_INSTALLED:
        return {"error": "not installed"}
    if process.returncode != 0:
        return {"error": (complaint.strip().splitlines() or [str(process.returncode)])[-1][:500]}
    answer: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return answer


# Costs


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


def costs(stand: Stand, directory: Path) -> dict[str, Any]:
    """Launches per second with a class in times of those without, in pairs in turns."""
    library = stand.libraries / f"{FRONT_PREFIX}libcuda.so.1"
    program = directory / "launch_rate"
    command = [
        "cc",
        "-O2",
        "-o",
        str(program),
        str(HERE / "launch_rate.c"),
        "-Wl,--no-as-needed",
        str(library.resolve()),
    ]
    subprocess.run(command, check=True, timeout=60)
    results: dict[str, Any] = {"pairs": PAIRS, "seconds_each": RATE_SECONDS}
    for kind in ("Normal", "Protected", "BestEffort"):
        for depth in (1, 64):
            ways = (stand.environment(), stand.environment(kind))
            pairs: list[list[float]] = []
            for number in range(PAIRS):
                order = (0, 1) if number % 2 == 0 else (1, 0)
                rates = {
                    way: float(
                        subprocess.run(
                            [str(program), str(RATE_SECONDS), str(depth)],
                            env=ways[way], capture_output=True, text=True, check=True, timeout=60,
                        ).stdout
                    )
                    for way in order
                }  # fmt: skip
                pairs.append([rates[0], rates[1]])
            results[f"{kind}, {depth} at a time"] = {
                "without": spread([before for before, _ in pairs]),
                "ratio": spread([after / before for before, after in pairs]),
            }
    return results


# Latency


class Scene:
    """Services, and a neighbour of each way: all are started at once, and work when they are told."""

    def __init__(self, stand: Stand, stack: ExitStack, names: tuple[str, ...]) -> None:
        self.stand = stand
        service, neighbour = [sys.executable, str(HERE / "service.py")], [sys.executable, str(HERE / "neighbour.py")]
        self.services = {
            "": Program(service, stand.environment()),
            "Protected": Program(service, stand.environment("Protected")),
        }
        self.neighbours = {
            name: Program(
                [*neighbour, *names], stand.environment("BestEffort" if way.gives_way else "", way.cap, way.sms)
            )
            for name, way in WAYS.items()
        }
        for program in (*self.services.values(), *self.neighbours.values()):
            stack.callback(program.end)
        for program in (*self.services.values(), *self.neighbours.values()):
            program.hear(START_SECONDS)

    def cell(self, kind: str, way: str, requests: int, rate: float, burst: str = "") -> dict[str, Any]:
        """The service's latency beside one neighbour, and what both have done meanwhile."""
        service = self.services["Protected" if WAYS[way].gives_way else ""]
        neighbour = self.neighbours[way]
        before = self.stand.counted(neighbour)
        neighbour.tell(f"run {kind}")
        time.sleep(0.4)
        latency = service.ask(f"load {rate} {requests} 7 {burst}")
        work = neighbour.ask("end")
        after = self.stand.counted(neighbour)
        counts = {
            name: after[name] - before[name]
            for name in ("launches", "gave_way", "held_back", "by_floor", "on_part", "unpaced")
            if name in after
        }
        seen = {name: after[name] for name in ("part_sms", "all_sms", "longest_ms") if name in after}
        return {"neighbour": kind, "way": way, "service": latency, "best_effort": work | counts | seen}


def cells(scene: Scene) -> dict[str, Any]:
    capacity = {name or "none": service.ask("capacity")["per_second"] for name, service in scene.services.items()}
    rate = LOAD * min(capacity.values())
    results: dict[str, Any] = {"capacity_per_second": capacity, "rate": rate, "load": LOAD, "cells": []}
    results["service_alone"] = {
        name or "none": [service.ask(f"load {rate} {REQUESTS} {seed}") for seed in (7, 8)]
        for name, service in scene.services.items()
    }
    for kind in NEIGHBOURS:
        for way in WAYS:
            results["cells"].append(scene.cell(kind, way, REQUESTS, rate))
    for way in ("gives way, cap 50", "gives way, green 50"):
        results["cells"].append(scene.cell("matmuls", way, REQUESTS, rate, "1 1") | {"bursts": "a second on, one off"})
    for cell in results["cells"]:
        alone = results["service_alone"]["Protected" if WAYS[cell["way"]].gives_way else "none"]
        cell["p99_times_alone"] = round(cell["service"]["p99_ms"] / median(run["p99_ms"] for run in alone), 3)
    return results


def alone(scene: Scene) -> dict[str, Any]:
    """Best effort with nobody else, by way; and of its speed in turns with the plain one."""
    results: dict[str, Any] = {"turns": ALONE_TURNS, "seconds_each": ALONE_SECONDS}
    for kind in NEIGHBOURS:
        rates: dict[str, list[float]] = {}
        for turn in range(ALONE_TURNS):
            names = ("MPS plain", "gives way", "gives way, green 50", *(("cap 50",) if turn == 0 else ()))
            for name in names if turn % 2 == 0 else reversed(names):
                scene.neighbours[name].tell(f"run {kind}")
                time.sleep(ALONE_SECONDS)
                rates.setdefault(name, []).append(scene.neighbours[name].ask("end")["per_second"])
        ratios = {
            f"{name}, in times of plain": spread(
                [mine / plain for mine, plain in zip(rates[name], rates["MPS plain"], strict=True)]
            )
            for name in ("gives way", "gives way, green 50")
        }
        results[kind] = {name: spread(values) for name, values in rates.items()} | ratios
    return results


def measured(part: str, stand: Stand, scene: Scene | None, directory: Path) -> dict[str, Any]:
    if part == "programs":
        return programs(stand)
    if part == "costs" or scene is None:
        return costs(stand, directory)
    return cells(scene) if part == "cells" else alone(scene)


def note_kept(result: dict[str, Any]) -> None:
    """How much of its speed alone best effort keeps in each cell."""
    for cell in result["cells"]["cells"]:
        plain = result["alone"][cell["neighbour"]]["MPS plain"]["median"]
        cell["best_effort"]["kept"] = round(cell["best_effort"]["per_second"] / plain, 3)


def main() -> int:
    out, parts = Path(sys.argv[1]), sys.argv[2:] or PARTS
    result: dict[str, Any] = {"environment": environment_block(), "memory_mib_each": MEMORY_MIB}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        stand, scene = Stand(Path(scratch), stack), None
        for part in parts:
            began = time.monotonic()
            try:
                if part in ("cells", "alone") and scene is None:
                    scene = Scene(stand, stack, NEIGHBOURS)
                result[part] = measured(part, stand, scene, Path(scratch))
            except (RuntimeError, OSError, subprocess.SubprocessError, Empty) as error:
                result[part] = {"error": repr(error)}
                traceback.print_exc()
            if "alone" in result and "cells" in result.get("cells", {}):
                note_kept(result)
            result.setdefault("part_seconds", {})[part] = round(time.monotonic() - began, 1)
            out.write_text(json.dumps(result, indent=1) + "\n")
            print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
