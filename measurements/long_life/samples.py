"""What each part of an installation uses at one time: memory, file descriptors, threads, what is left on the disk, and
how often it writes to the API.

Memory and the like are of one process, named by its PID and its start: another process of the same part is another one.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.kubectl import CommandError
from localcluster.stack import NAMESPACE
from tests.cluster.harness import Harness
from tests.faults.injected.faultpoints import role_of

EVERY_SECONDS = 10.0
PARTS = ("operator", "webhook", "agent", "mps-supervisor", "mps-broker")
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:gpushare-"
WRITES = frozenset({"create", "update", "patch", "delete"})
DIRECTORIES = ("/run/gpushare", "/var/run/cdi")
MIB = float(1 << 20)


@dataclass(frozen=True)
class Process:
    """`life`: tells it from another process of the part. `rss`: in MiB."""

    part: str
    life: str
    rss: float
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Sample:
    """`at`: seconds since the stretch of the long life began. `clients`, `shares`: those that there are.

    `kilobytes`, `files`: below DIRECTORIES. `gpu_node`: bytes of the GpuNode as JSON. `writes`: requests since the
    sample before, by part; `events`: those of them that make or count up an event.
    """

    at: float
    clients: int
    shares: int
    processes: tuple[Process, ...]
    kilobytes: float
    files: int
    gpu_node: int
    writes: dict[str, int]
    events: dict[str, int]

    def line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, line: str) -> "Sample":
        fields = json.loads(line)
        return cls(**fields | {"processes": tuple(Process(**process) for process in fields["processes"])})


def processes(proc: Path) -> Iterator[Process]:
    """Processes of our parts, from a /proc. One that ends meanwhile is left out."""
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_text(errors="replace").split("\0")
            if (part := role_of(words)) in PARTS:
                yield _process(part, entry)
        except OSError:
            continue


def _process(part: str, entry: Path) -> Process:
    started = (entry / "stat").read_text().rpartition(")")[2].split()[19]
    status = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines() if ":" in line)
    return Process(
        part,
        f"{entry.name}-{started}",
        round(int(status["VmRSS"].split()[0]) / 1024, 2),
        sum(1 for _ in (entry / "fd").iterdir()),
        int(status["Threads"]),
    )


def disk(directories: list[Path]) -> tuple[float, int]:
    """(KiB, number) of the files below; one that goes meanwhile counts as nothing."""
    size, count = 0, 0
    for directory in directories:
        for path in directory.rglob("*"):
            try:
                if path.is_file() and not path.is_symlink():
                    size, count = size + path.stat().st_size, count + 1
            except OSError:
                continue
    return round(size / 1024, 1), count


class AuditLog:
    """The API server's audit log from now on, across its rotations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open()
        self._file.seek(0, 2)
        self._rest = ""

    def lines(self) -> Iterator[str]:
        """Those that are new and whole."""
        yield from self._new()
        try:
            rotated = self._path.stat().st_ino != Path(f"/proc/self/fd/{self._file.fileno()}").stat().st_ino
        except OSError:  # between the two files
            return
        if rotated:
            self._file.close()
            self._file, self._rest = self._path.open(), ""
            yield from self._new()

    def _new(self) -> Iterator[str]:
        *whole, self._rest = (self._rest + self._file.read()).split("\n")
        yield from whole


def writes(lines: Iterator[str]) -> tuple[Counter[str], Counter[str]]:
    """(all writes, those of events) by part, from lines of an audit log."""
    every, events = Counter[str](), Counter[str]()
    for line in lines:
        if ACCOUNT not in line:
            continue
        request = json.loads(line)
        account, verb = request["user"]["username"], request["verb"]
        if verb in WRITES and account.startswith(ACCOUNT):
            part = account.removeprefix(ACCOUNT)
            every[part] += 1
            events[part] += request.get("objectRef", {}).get("resource") == "events"
    return every, events


class Sampler:
    """Takes a sample each EVERY_SECONDS into a file, while it is open."""

    def __init__(self, harness: Harness, path: Path, load: Callable[[], tuple[int, int]]) -> None:
        """`load`: (clients, shares) of this moment."""
        self._harness, self._path, self._load = harness, path, load
        self._audit = AuditLog(harness.layout.audit_log)
        self._over = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(60)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(EVERY_SECONDS):
            try:
                sample = self._sample(round(time.monotonic() - began, 1))
            except (CommandError, OSError):  # the API server has other work
                continue
            with self._path.open("a") as file:
                file.write(sample.line() + "\n")

    def _sample(self, at: float) -> Sample:
        harness = self._harness
        node = harness.gpu_node()
        node["metadata"].pop("managedFields", None)
        every, events = writes(self._audit.lines())
        size, count = disk([harness.in_node(item) for item in DIRECTORIES])
        own = tuple(sorted(processes(harness.in_node("/proc")), key=lambda item: (item.part, item.life)))
        return Sample(at, *self._load(), own, size, count, len(json.dumps(node)), dict(every), dict(events))
