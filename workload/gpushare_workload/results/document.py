"""The result of a benchmark as plain values, to and from the JSON that `--json` writes and `report` reads.

Times are in seconds, latencies in nanoseconds, memory in MiB, clocks in MHz; every JSON name contains its unit. Reading
raises ValueError for a file of another format, with the reason.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.histogram import Histogram

SCHEMA = "gpushare.dev/bench/v2"
PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True)
class ClientResult:
    """One client in one run. `kernels` ran within the window; `latency` is that of each round with its wait."""

    client: int
    pid: int
    kernels: float
    latency: Histogram
    late_ms: float
    """Time from the common start to the client's first launch."""

    def as_json(self, window: float) -> dict[str, Any]:
        """Includes its rate and percentiles, so that readers need not compute them."""
        percents = PERCENTILES if self.latency.count else ()
        return {
            "client": self.client,
            "pid": self.pid,
            "kernels": round(self.kernels, 3),
            "kernels_per_second": round(self.kernels / window, 3),
            **{f"p{percent:g}_us": round(self.latency.percentile(percent) / 1000, 2) for percent in percents},
            "late_ms": round(self.late_ms, 3),
            "latency": self.latency.as_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ClientResult":
        latency = Histogram.from_json(value["latency"])
        return cls(int(value["client"]), int(value["pid"]), float(value["kernels"]), latency, float(value["late_ms"]))


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel."""

    blocks: int
    flops: int
    bytes_moved: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Run:
    """One load, once, by all clients of a pass at the same time."""

    repeat: int
    mode: SharingMode
    clients: int
    threads: float | None
    load: Load
    window: float
    launch: Launch
    results: tuple[ClientResult, ...]
    sms: int | None = None
    """The SMs that CUDA shows each client: the limit in force."""
    memory_mib: Mapping[int, int] = field(default_factory=dict)
    """MiB by the client's PID, from NVML; empty if NVML does not report it."""
    busy_percent: float | None = None
    """NVML's utilisation of the whole GPU: the part of its last sample period in which any kernel ran, if reported."""
    clocks: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    refused: str = ""
    """Why these figures cannot be true. A refused run is kept and counts nowhere."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Kernels per second of each client."""
        return tuple(result.kernels / self.window for result in self.results)

    @property
    def total_rate(self) -> float:
        return sum(self.rates)

    def as_json(self) -> dict[str, Any]:
        return {
            "repeat": self.repeat,
            "mode": self.mode.value,
            "clients": self.clients,
            "threads_percent": self.threads,
            "kind": self.load.kind.value,
            "grid": self.load.grid.value,
            "depth": self.load.depth,
            "graph": self.load.graph,
            "window_seconds": self.window,
            "kernels_per_second": round(self.total_rate, 3),
            "launch": self.launch.as_json(),
            "results": [result.as_json(self.window) for result in self.results],
            "sms": self.sms,
            "memory_mib": {str(pid): mib for pid, mib in self.memory_mib.items()},
            "gpu_busy_percent": self.busy_percent,
            "clocks": dict(self.clocks),
            "warnings": list(self.warnings),
            "refused": self.refused,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Run":
        threads = value["threads_percent"]
        return cls(
            repeat=int(value["repeat"]),
            mode=SharingMode(value["mode"]),
            clients=int(value["clients"]),
            threads=None if threads is None else float(threads),
            load=Load(LoadKind(value["kind"]), Grid(value["grid"]), int(value["depth"]), bool(value["graph"])),
            window=float(value["window_seconds"]),
            launch=Launch(**value["launch"]),
            results=tuple(ClientResult.from_json(result) for result in value["results"]),
            sms=value["sms"],
            memory_mib={int(pid): int(mib) for pid, mib in value["memory_mib"].items()},
            # Files of earlier versions have none.
            busy_percent=value.get("gpu_busy_percent"),
            clocks=dict(value["clocks"]),
            warnings=tuple(value["warnings"]),
            refused=str(value["refused"]),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that ran one benchmark together: this file is from pod `pod` of `pods`."""

    name: str
    pod: int
    pods: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Document:
    """One file. `ended` says why a benchmark did not run to its end; empty if it did."""

    backend: str
    simulated: bool
    environment: Mapping[str, Any]
    command: tuple[str, ...]
    plan: Mapping[str, Any]
    runs: tuple[Run, ...]
    ended: str = ""
    group: Group | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "backend": self.backend,
            "simulated": self.simulated,
            "ended": self.ended,
            "group": self.group.as_json() if self.group else None,
            "command": list(self.command),
            "environment": dict(self.environment),
            "plan": dict(self.plan),
            "runs": [run.as_json() for run in self.runs],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Document":
        """Raises ValueError."""
        if value.get("schema") != SCHEMA:
            raise ValueError(f"the schema is {value.get('schema')!r}, not {SCHEMA!r}")
        try:
            return cls(
                backend=str(value["backend"]),
                simulated=bool(value["simulated"]),
                environment=dict(value["environment"]),
                command=tuple(value["command"]),
                plan=dict(value["plan"]),
                runs=tuple(Run.from_json(run) for run in value["runs"]),
                ended=str(value["ended"]),
                group=Group(**value["group"]) if value["group"] else None,
            )
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"not a whole result of the benchmark: {type(error).__name__} {error}") from error
