"""A process that launches as it is told, before the driver that stands in: it evaluates what it reads, line by line."""

import json
import subprocess
import sys
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import IO, Any

KERNEL, COOPERATIVE, GRAPH, COPY, RECORDED, WAIT, HOST = range(1, 8)
"""What the driver has noted: see `Traced`."""

PROGRAM = r"""
import ctypes, json, os, sys, threading, time
P = ctypes.c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
class Trace(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("what", ctypes.c_int), ("stream", ctypes.c_int), ("green", ctypes.c_int),
                ("called", ctypes.c_int64), ("begin", ctypes.c_int64), ("end", ctypes.c_int64)]
class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]
class Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", P),
                ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]
def found(name, version=12000, flags=0, lookup="cuGetProcAddress_v2"):
    address, status = P(), ctypes.c_int()
    last = (ctypes.byref(status),) if lookup.endswith("_v2") else ()
    result = getattr(cuda, lookup)(name.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags), *last)
    typed = lambda a: ctypes.CFUNCTYPE(ctypes.c_int, *[type(v) for v in a])(address.value)
    return (lambda *a: typed(a)(*a)) if result == 0 else None
def address_of(name, flags=0, library=cuda):
    address, flags = P(), ctypes.c_uint64(flags)
    library.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), 12000, flags, None)
    return address.value
def kernel(us, what=1, stream=0, f=None):
    u = ctypes.c_uint
    return (f or cuda.cuLaunchKernel)(P(what), u(us), u(1), u(1), u(1), u(1), u(1), u(0), P(stream), P(), P())
def cooperative(us, what=1, stream=0, f=None):
    u = ctypes.c_uint
    return (f or cuda.cuLaunchCooperativeKernel)(P(what), u(us), u(1), u(1), u(1), u(1), u(1), u(0), P(stream), P())
def kernel_ex(us, what=1, stream=0, cooperative=False, f=None):
    attribute = Attribute(2, 0, int(cooperative))
    config = Config((us, 1, 1), (1, 1, 1), 0, stream, ctypes.pointer(attribute), 1)
    return (f or cuda.cuLaunchKernelEx)(P(ctypes.addressof(config)), P(what), P(), P())
def graph(us, stream=0, f=None):
    return (f or cuda.cuGraphLaunch)(P(us), P(stream))
def copy(size, stream=0, f=None):
    return (f or cuda.cuMemcpyAsync)(ctypes.c_uint64(1), ctypes.c_uint64(2), ctypes.c_size_t(size), P(stream))
def fill(size, stream=0, f=None):
    return (f or cuda.cuMemsetD32Async)(ctypes.c_uint64(1), ctypes.c_uint(2), ctypes.c_size_t(size // 4), P(stream))
def copy_back(size, f=None):
    return (f or cuda.cuMemcpyDtoH_v2)(P(1), ctypes.c_uint64(2), ctypes.c_size_t(size))
def stream(flags=1, priority=0):
    made = P()
    assert cuda.cuStreamCreateWithPriority(ctypes.byref(made), flags, priority) == 0
    return made.value
def event():
    made = P()
    assert cuda.cuEventCreate(ctypes.byref(made), 2) == 0
    return made.value
def record(e, s=0): return cuda.cuEventRecord(P(e), P(s))
def wait(s, e): return cuda.cuStreamWaitEvent(P(s), P(e), 0)
def context(create, *between): return create(ctypes.pointer(P()), *between, ctypes.c_uint(0), ctypes.c_int(0))
def primary(f=None): return (f or cuda.cuDevicePrimaryCtxRetain)(ctypes.pointer(P()), ctypes.c_int(0))
def sync(s=0): return cuda.cuStreamSynchronize(P(s))
def begin_capture(s): return cuda.cuStreamBeginCapture_v2(P(s), 0)
def end_capture(s): return cuda.cuStreamEndCapture(P(s), ctypes.byref(P()))
FUNCTIONS = []
def call_host(s=0, seconds=0.0):
    done = threading.Event()
    f = ctypes.CFUNCTYPE(None, P)(lambda data: done.set())
    FUNCTIONS.append(f)
    assert cuda.cuLaunchHostFunc(P(s), f, P(7)) == 0
    return done
def trace():
    traces, violations = (Trace * 65536)(), ctypes.c_int()
    count = cuda.driverTrace(traces, 65536, ctypes.byref(violations))
    return [[getattr(t, name) for name, _ in Trace._fields_] for t in traces[:count]], violations.value
def timed(f, *arguments):
    began = time.monotonic()
    assert f(*arguments) == 0
    return time.monotonic() - began
def for_seconds(seconds, f, *arguments):
    done, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        assert f(*arguments) == 0
        done += 1
    return done
def in_threads(count, f, *arguments):
    results = []
    threads = [threading.Thread(target=lambda: results.append(f(*arguments))) for _ in range(count)]
    for t in threads: t.start()
    for t in threads: t.join()
    return results
def in_child(f):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, json.dumps(f()).encode())
        os._exit(0)
    os.close(tell)
    answer = os.read(told, 4096)
    os.waitpid(child, 0)
    return json.loads(answer)
for line in sys.stdin:
    print(json.dumps(eval(line), default=str), flush=True)
"""


class Traced:
    """One thing that the driver was given: its kind, a number, its stream, and nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self, values: list[int]) -> None:
        self.kind, self.what, self.stream, self.green, self.called, self.begin, self.end = values


class PacedClient:
    """`libraries`: as `build.container_with_classes` makes them. `attach`: the broker's directory. `errors`: stderr."""

    def __init__(self, libraries: Path, attach: Path, errors: IO[str] | None = None, **environment: str) -> None:
        environment |= {"LD_LIBRARY_PATH": str(libraries), "GPUSHARE_ATTACH": str(attach)}
        self._process = subprocess.Popen(
            [sys.executable, "-SEuc", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        self._lines: Queue[str] = Queue()
        Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> "PacedClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def tell(self, expression: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()

    def hear(self, seconds: float = 30) -> Any:
        """What the oldest expression came to that was not heard of yet."""
        line = self._lines.get(timeout=seconds)
        assert line, "the client has ended"
        return json.loads(line)

    def has_answered(self) -> bool:
        return not self._lines.empty()

    def __call__(self, expression: str, seconds: float = 30) -> Any:
        self.tell(expression)
        return self.hear(seconds)

    def traced(self, *kinds: int) -> list[Traced]:
        """In the order of the calls; of no kind: all."""
        rows, violations = self("trace()")
        assert violations == 0, "a call of the library would have ended a capture"
        return [traced for traced in map(Traced, rows) if not kinds or traced.kind in kinds]
