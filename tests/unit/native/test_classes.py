"""Clients with a class, before a driver that stands in: what is counted, who is waited for, and in which order."""

import itertools
import mmap
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native import build
from tests.native.paced_client import COOPERATIVE, COPY, GRAPH, KERNEL, PacedClient
from tests.native.pages_broker import BUSY, NORMAL, PAGES, PROTECTED, Page, PagesBroker

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C compiler")

MS = 1_000_000
MIB = 1 << 20
Start = Callable[..., PacedClient]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.container_with_classes(tmp_path_factory.mktemp("container"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PagesBroker]:
    with PagesBroker(tmp_path / "attach") as broker:
        yield broker


@pytest.fixture
def start(libraries: Path, tmp_path: Path) -> Iterator[Start]:
    clients: list[PacedClient] = []

    def started(kind: str, init: bool = True) -> PacedClient:
        clients.append(PacedClient(libraries, tmp_path / "attach", **({"GPUSHARE_CLASS": kind} if kind else {})))
        if init:
            assert clients[-1]("cuda.cuInit(0)") == 0
        return clients[-1]

    yield started
    for client in clients:
        client.__exit__()


def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.001)


@pytest.mark.parametrize("kind", ["", "protected", "Best", "BestEffort "])
def test_without_a_class_nobody_is_asked_and_each_function_is_the_drivers(
    broker: PagesBroker, start: Start, kind: str
) -> None:
    client = start(kind)
    client("globals().update(own=ctypes.CDLL('gpushare-libcuda.so.1'))")
    for name in ("cuLaunchKernel", "cuGraphLaunch", "cuStreamSynchronize", "cuMemcpyDtoH", "cuInit"):
        for flags in (0, 2):
            assert client(f"address_of({name!r}, {flags}) == address_of({name!r}, {flags}, own)")
    assert client("[kernel(10), sync()]") == [0, 0]
    assert [traced.kind for traced in client.traced()] == [KERNEL]
    assert broker.processes == {}


LAUNCHES = {
    "kernel": ("kernel(200, f=F)", "cuLaunchKernel", KERNEL),
    "kernel with attributes": ("kernel_ex(200, f=F)", "cuLaunchKernelEx", KERNEL),
    "cooperative kernel": ("cooperative(200, f=F)", "cuLaunchCooperativeKernel", COOPERATIVE),
    "graph": ("graph(200, f=F)", "cuGraphLaunch", GRAPH),
    "copy": (f"copy({MIB}, f=F)", "cuMemcpyAsync", COPY),
    "fill": (f"fill({MIB}, f=F)", "cuMemsetD32Async", COPY),
}
WAYS = {
    "by symbol": "cuda.{0}",
    "by symbol, of the thread's stream": "cuda.{0}_ptsz",
    "looked up": "found('{0}')",
    "looked up, of the thread's stream": "found('{0}', flags=2)",
    "looked up by the first lookup": "found('{0}', 11060, lookup='cuGetProcAddress')",
    "looked up by a lookup that was looked up": "found('{0}')",
}


@pytest.mark.parametrize("kind", ["Protected", "Normal", "BestEffort"])
def test_every_way_to_launch_is_counted_and_each_way_to_wait_ends_it(
    broker: PagesBroker, start: Start, kind: str
) -> None:
    client, launches = start(kind), 0
    page = broker.processes[client.pid]
    until(lambda: page.known)
    for expression, name, traced in LAUNCHES.values():
        for way in WAYS.values():
            own = "_ptsz" in way or "flags=2" in way
            call = expression.replace("F)", way.format(name) + ")")
            before = page.counted()["active"]
            assert client(f"[{call}, cuda.cuStreamSynchronize{'_ptsz' if own else ''}(P())]") == [0, 0], call
            launches += 1
            counted = page.counted()
            assert counted["launches"] == launches, call
            assert counted["active_since"] == 0, call
            assert counted["active"] - before >= 150_000, call
            assert client.traced()[-1 if kind != "BestEffort" else 0].kind in (traced, KERNEL), call
    assert client(f"[copy({MIB - 1}), fill({MIB - 4})]") == [0, 0]
    assert page.counted()["launches"] == launches, "small ones do not count"


ENDINGS = {
    "its stream": ("kernel(3000, stream=S)", "sync(S)"),
    "a question about its stream": ("kernel(3000, stream=S)", "[time.sleep(0.004), cuda.cuStreamQuery(P(S))]"),
    "its context": ("kernel(3000, stream=S)", "cuda.cuCtxSynchronize()"),
    "an event": ("[kernel(3000, stream=S), record(E, S)]", "cuda.cuEventSynchronize(P(E))"),
    "a question about an event": (
        "[kernel(3000, stream=S), record(E, S)]",
        "[time.sleep(0.004), cuda.cuEventQuery(P(E))]",
    ),
    "an event with flags": (
        "[kernel(3000, stream=S), cuda.cuEventRecordWithFlags(P(E), P(S), 0)]",
        "cuda.cuEventSynchronize(P(E))",
    ),
    "a host function": ("kernel(3000, stream=S)", "call_host(S).wait(5)"),
    "a copy to the host": ("kernel(3000)", "copy_back(100)"),
    "a stream that waits for it": ("[kernel(3000, stream=S), record(E, S), wait(T, E)]", "sync(T)"),
    "the thread's own stream": (
        "kernel(3000, f=cuda.cuLaunchKernel_ptsz)",
        "cuda.cuStreamSynchronize(P(2))",
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_protected_client_is_busy_from_a_launch_to_what_ends_it(
    broker: PagesBroker, start: Start, ending: str
) -> None:
    client = start("Protected")
    client("globals().update(S=stream(), T=stream(), E=event())")
    page = broker.processes[client.pid].busy
    assert page is not None
    assert page.word() & 1 == 0
    launch, end = ENDINGS[ending]
    client(launch)
    assert page.word() & 1 == 1
    client(end)
    assert page.word() & 1 == 0
    assert broker.processes[client.pid].counted()["active"] > 2 * MS


@pytest.mark.parametrize(
    ("launch", "not_its_end"),
    [
        ("[kernel(9000, stream=S), kernel(9000, stream=T)]", "sync(S)"),
        ("[record(E, S), kernel(9000, stream=S)]", "cuda.cuEventSynchronize(P(E))"),
        ("[kernel(90000, stream=S), record(E, S)]", "cuda.cuEventQuery(P(E))"),
        ("kernel(90000, stream=S)", "cuda.cuStreamQuery(P(S))"),
        ("[kernel(1000, stream=S), record(E, S), wait(T, E), kernel(9000, stream=S)]", "sync(T)"),
        ("kernel(9000, f=cuda.cuLaunchKernel_ptsz)", "in_threads(1, cuda.cuStreamSynchronize_ptsz, P())"),
    ],
)
def test_a_protected_client_is_busy_as_long_as_anything_is_under_way(
    broker: PagesBroker, start: Start, launch: str, not_its_end: str
) -> None:
    client = start("Protected")
    client("globals().update(S=stream(), T=stream(), E=event())")
    page = broker.processes[client.pid].busy
    assert page is not None
    client(launch)
    client(not_its_end)
    assert page.word() & 1 == 1
    client("cuda.cuCtxSynchronize()")
    assert page.word() & 1 == 0


def test_each_period_and_each_renewal_changes_the_word(broker: PagesBroker, start: Start) -> None:
    client = start("Protected")
    page = broker.processes[client.pid].busy
    assert page is not None
    words = [page.word()]
    for _ in range(3):
        client("[kernel(10), sync()]")
        words.append(page.word())
    client("kernel(10)")
    words.append(page.word())
    client("[time.sleep(0.03), kernel(10)]")
    words.append(page.word())
    assert len({word >> 1 for word in words}) == len(words)


def test_only_its_process_writes_a_busy_page_whoever_has_a_descriptor(broker: PagesBroker, start: Start) -> None:
    """As root, and with the descriptor with which the page was made."""
    client = start("Protected")
    page = broker.processes[client.pid].busy
    assert page is not None
    until(lambda: broker.processes[client.pid].known)
    assert page.sealed()
    again = os.open(f"/proc/self/fd/{page.descriptor}", os.O_RDWR)
    for descriptor in (page.descriptor, again):
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 8)
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 4096)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 8192)
    os.close(again)
    client("kernel(10)")
    assert page.word() & 1 == 1
    held = os.open(f"/proc/self/fd/{broker.processes[client.pid].activity.descriptor}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.ftruncate(held, 1 << 30)
    with pytest.raises(PermissionError):
        os.pwrite(held, b"x", 8192)
    os.close(held)


# Best effort


def active(page: Page) -> None:
    """A protected client that has just been at work."""
    page.set_word(True)
    page.set_word(False, again=False)


def busy_for(page: Page, seconds: float, holds: Callable[[], bool] = lambda: True) -> None:
    """A protected client at work, which goes on launching. `holds`: until it ends."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        page.set_word(True)
        time.sleep(0.02)
    assert holds()
    page.set_word(False, again=False)


@pytest.mark.parametrize("launch", [expression.replace(", f=F", "") for expression, _, _ in LAUNCHES.values()])
def test_best_effort_waits_while_a_protected_client_is_busy(broker: PagesBroker, start: Start, launch: str) -> None:
    page = broker.protected()
    client = start("BestEffort")
    client(f"[[kernel(2000), {launch}] for _ in range(40)]")  # it had more than its part
    page.set_word(True)
    client.tell(f"timed(lambda: {launch})")
    busy_for(page, 0.3, lambda: not client.has_answered())
    assert client.hear() > 0.1
    counted = broker.processes[client.pid].counted()
    assert counted["held_back"] == 1
    assert counted["gave_way"] >= 100 * MS
    assert counted["gave_way_to"][0] == counted["gave_way"]
    assert counted["unpaced"] == 0


def test_best_effort_has_its_floor_beside_a_client_that_is_always_busy(broker: PagesBroker, start: Start) -> None:
    page = broker.protected()
    client = start("BestEffort")
    client("[kernel(2000) for _ in range(100)]")
    page.set_word(True)
    client.tell("[for_seconds(4, kernel, 1000), sync()]")
    busy_for(page, 4)
    launches, _ = client.hear()
    assert 0.03 * 3 / 0.001 <= launches <= 0.08 * 4 / 0.001, "of 4 s the first one pays for what it had"
    assert broker.processes[client.pid].counted()["by_floor"] >= 0.9 * launches


def test_a_busy_word_that_nobody_renews_lapses(broker: PagesBroker, start: Start) -> None:
    """Its process has died or stands still: nothing waits for it after a second."""
    page = broker.protected()
    client = start("BestEffort")
    client("[kernel(2000) for _ in range(100)]")
    page.set_word(True)
    assert 0.7 < client("timed(kernel, 10)") < 2
    assert client("timed(lambda: max(kernel(3000) for _ in range(20)))") < 0.6, "by the floor it would be 1.2 s"


def test_one_launch_is_under_way_while_a_protected_client_was_active(broker: PagesBroker, start: Start) -> None:
    page = broker.protected()
    client = start("BestEffort")
    client("globals().update(S=stream())")
    page.set_word(True)
    page.set_word(False, again=False)
    client("[[kernel(500), kernel(700, stream=S), graph(300)] for _ in range(4)]")
    traced = client.traced(KERNEL, GRAPH)
    assert len(traced) == 12
    assert all(later.called >= earlier.end for earlier, later in itertools.pairwise(traced))
    longest = broker.processes[client.pid].counted()["longest"]
    assert longest.keys() == {"kernel_1", "(graph)"}
    assert 0.6 * MS < longest["kernel_1"] < 2 * MS


def test_kernels_that_are_known_to_be_short_may_be_under_way_together(broker: PagesBroker, start: Start) -> None:
    page = broker.protected()
    client = start("BestEffort")
    active(page)
    client("[[kernel(30, 1) for _ in range(40)], [kernel(2000, 2), kernel(30, 1), kernel(30, 1)]]")
    traced = client.traced(KERNEL)
    under_way = [sum(earlier.end > later.called for earlier in traced[:place]) for place, later in enumerate(traced)]
    assert under_way[1] == 0, "it is not known how long they take"
    assert 2 <= max(under_way) <= 5, "100 µs of them"
    assert under_way[-2] == 0, "the one before was long"


def test_work_under_way_is_bounded_by_time_with_nobody_protected_active(broker: PagesBroker, start: Start) -> None:
    broker.protected()
    client = start("BestEffort")
    client("[kernel(700) for _ in range(60)]")
    traced = client.traced(KERNEL)
    late = [earlier.end - later.called for earlier, later in itertools.pairwise(traced)]
    assert 0.5 * MS < max(late) < 5 * MS
    before = len(client.traced(KERNEL))
    assert client("timed(lambda: max(kernel(1) for _ in range(2000)))") < 0.2
    assert len(client.traced(KERNEL)) == before + 2000


def test_threads_of_best_effort_launch_one_after_the_other(broker: PagesBroker, start: Start) -> None:
    page = broker.protected()
    client = start("BestEffort")
    page.set_word(True)
    page.set_word(False, again=False)
    client("in_threads(4, lambda: [kernel(300, stream=stream()) for _ in range(5)])")
    traced = client.traced(KERNEL)
    assert len(traced) == 20
    assert all(later.called >= earlier.end for earlier, later in itertools.pairwise(traced))


def test_a_thread_that_waits_takes_little_of_a_processor(broker: PagesBroker, start: Start) -> None:
    page = broker.protected()
    client = start("BestEffort")
    client("[kernel(2000) for _ in range(60)]")
    page.set_word(True)
    client.tell("[time.process_time(), kernel(1), time.process_time()]")
    busy_for(page, 0.6)
    began, _, ended = client.hear()
    assert ended - began < 0.12


# Part of the SMs


@pytest.fixture
def part(tmp_path: Path) -> Iterator[PagesBroker]:
    with PagesBroker(tmp_path / "attach", sm_percent=50) as broker:
        yield broker


@pytest.mark.parametrize("stream", ["0", "1", "2", "S"])
@pytest.mark.parametrize("launch", ["kernel({})", "kernel_ex({})"])
def test_kernels_go_to_part_of_the_sms_in_their_order(
    part: PagesBroker, start: Start, launch: str, stream: str
) -> None:
    page = part.protected()
    client = start("BestEffort")
    client("globals().update(S=stream())")
    own = f"stream={stream}"
    active(page)
    kernel = launch.format("300, 1, " + own)
    client(f"[[{kernel}, graph(200, {stream}), copy({MIB}, {stream})] for _ in range(2)]")
    client(f"[[copy({MIB - 4}, {stream}), {kernel}, copy({MIB - 4}, {stream})] for _ in range(2)]")  # wait for nothing
    client(f"sync({stream})")
    ended = time.monotonic_ns()
    traced = client.traced(KERNEL, GRAPH, COPY)
    assert [bool(entry.green) for entry in traced] == [True, False, False] * 2 + [False, True, False] * 2
    assert all(later.begin >= earlier.end for earlier, later in itertools.pairwise(traced))
    assert ended >= traced[-1].end, "who waits for its stream waits for what went the detour"
    counted = part.processes[client.pid].counted()
    assert (counted["on_part"], counted["part_sms"], counted["all_sms"]) == (4, 72, 132)


def test_the_legacy_stream_and_streams_that_follow_it_keep_their_order(part: PagesBroker, start: Start) -> None:
    page = part.protected()
    client = start("BestEffort")
    client("globals().update(S=stream(flags=0))")
    active(page)
    client("[[kernel(400), kernel(300, stream=S)] for _ in range(3)]")
    traced = client.traced(KERNEL)
    assert all(entry.green for entry in traced)
    assert all(later.begin >= earlier.end for earlier, later in itertools.pairwise(traced))


@pytest.mark.parametrize(
    "launch",
    ["cooperative(300, stream=S)", "kernel_ex(300, stream=S, cooperative=True)", "kernel(300, 98, stream=S)"],
    ids=["cooperative", "cooperative by attribute", "refused there"],
)
def test_a_kernel_that_cannot_go_to_a_part_goes_as_it_is(part: PagesBroker, start: Start, launch: str) -> None:
    page = part.protected()
    client = start("BestEffort")
    client("globals().update(S=stream())")
    active(page)
    assert client(f"[{launch}, {launch}, kernel(100, stream=S)]") == [0, 0, 0]
    assert [entry.green for entry in client.traced(KERNEL, COOPERATIVE)][:2] == [0, 0]


def test_a_launch_that_fails_fails_as_it_would(part: PagesBroker, start: Start) -> None:
    page = part.protected()
    client = start("BestEffort")
    active(page)
    assert client("[kernel(10, 99), kernel(10), kernel(10, stream=77)]") == [1, 0, 400]
    assert [entry.green for entry in client.traced(KERNEL)] == [1]


def test_other_contexts_and_the_programs_own_parts_go_as_they_are(part: PagesBroker, start: Start) -> None:
    page = part.protected()
    client = start("BestEffort")
    client("globals().update(G=P(), D=P(5))")
    assert client("cuda.cuGreenCtxStreamCreate(ctypes.byref(G), D, 1, 0)") == 0
    active(page)
    assert client("[kernel(100, stream=G.value), kernel(100)]") == [0, 0]
    first, second = client.traced(KERNEL)
    assert (first.stream, second.green) == (int(client("G.value")), 1)
    assert client("[cuda.driverSetContext(7), kernel(100)]") == [0, 0]
    assert client.traced(KERNEL)[-1].green == 0


def test_a_destroyed_stream_and_a_reset_context_take_their_parts_along(part: PagesBroker, start: Start) -> None:
    page = part.protected()
    client = start("BestEffort")
    for _ in range(300):
        active(page)
        assert client("[globals().update(S=stream()), kernel(1, stream=S), cuda.cuStreamDestroy_v2(P(S))][1:]") == [
            0,
            0,
        ]
    assert client("[cuda.cuDevicePrimaryCtxReset_v2(0), kernel(10)]") == [0, 0]
    active(page)
    assert client("[kernel(10), sync()]") == [0, 0]
    assert part.processes[client.pid].counted()["unpaced"] == 0


def test_a_capture_meets_no_call_of_the_library(part: PagesBroker, start: Start) -> None:
    page = part.protected()
    client = start("BestEffort")
    client("globals().update(S=stream())")
    client("[kernel(2000) for _ in range(60)]")
    client("begin_capture(S)")
    before = len(client.traced())
    page.set_word(True)
    assert client("timed(lambda: max(kernel(100, stream=S) for _ in range(10)))") < 0.1, (
        "what is captured waits for nobody"
    )
    assert len(client.traced()) == before
    page.set_word(False, again=False)
    assert client("kernel(100)") == 0, "another stream, while this one is captured"
    client("end_capture(S)")
    assert client("graph(100, S)") == 0
    client.traced()


# Processes, and their broker


def test_a_child_has_pages_of_its_own_and_leaves_its_parents_alone(broker: PagesBroker, start: Start) -> None:
    parent = start("Protected", init=False)
    child = "in_child(lambda: [cuda.cuInit(0), kernel(100), kernel(100), os.getpid()])"
    pid = parent(child)[-1]
    assert broker.processes.keys() == {pid}, "forked before init"
    assert broker.processes[pid].counted()["launches"] == 2
    parent("[cuda.cuInit(0), kernel(100), sync()]")
    own = broker.processes[parent.pid]
    assert own.busy is not None
    before = own.counted(), own.busy.word()
    pid = parent(child)[-1]
    assert (own.counted(), own.busy.word()) == before, "forked after it"
    assert broker.processes[pid].counted()["launches"] == 2


def test_a_child_of_another_class_leaves_its_parents_busy_word_alone(libraries: Path, tmp_path: Path) -> None:
    parents: list[int] = []
    with (
        PagesBroker(tmp_path / "attach", class_of=lambda pid: PROTECTED if pid in parents else NORMAL) as broker,
        PacedClient(libraries, tmp_path / "attach", GPUSHARE_CLASS="Protected") as parent,
    ):
        parents.append(parent.pid)
        parent("[cuda.cuInit(0), kernel(100), sync()]")
        page = broker.processes[parent.pid].busy
        assert page is not None
        before = page.word()
        pid = parent("in_child(lambda: [cuda.cuInit(0), kernel(100), os.getpid()])")[-1]
        assert broker.processes[pid].counted()["launches"] == 1
        assert page.word() == before


def test_a_protected_client_that_comes_later_is_waited_for_until_it_goes(broker: PagesBroker, start: Start) -> None:
    client = start("BestEffort")
    client("[kernel(2000) for _ in range(60)]")
    client("time.sleep(0.2)")
    page = broker.protected()
    page.set_word(True)
    client.tell("timed(kernel, 10)")
    busy_for(page, 0.5, lambda: not client.has_answered())
    assert client.hear() > 0.1
    client("[time.sleep(0.2), [kernel(2000) for _ in range(60)]]")
    page.set_word(True)
    broker.remove(page)
    assert client("timed(kernel, 10)") < 0.7, "less than it takes to lapse"
    assert broker.processes[client.pid].asked == [PAGES, BUSY, BUSY]


def test_best_effort_waits_for_a_protected_process_on_the_same_gpu(broker: PagesBroker, start: Start) -> None:
    best_effort = start("BestEffort")
    best_effort("[[kernel(2000) for _ in range(60)], time.sleep(0.2)]")
    service = start("Protected")
    until(lambda: broker.processes[service.pid].known)
    service.tell("kernel(300_000), sync()")
    page = broker.processes[service.pid].busy
    assert page is not None
    until(lambda: page.word() & 1 == 1)
    assert best_effort("timed(kernel, 10)") > 0.2
    assert broker.processes[best_effort.pid].counted()["gave_way_to"][0] > 200 * MS


@pytest.mark.parametrize("kind", ["Protected", "BestEffort"])
def test_another_broker_gives_new_pages_in_which_counting_goes_on(
    broker: PagesBroker, start: Start, tmp_path: Path, kind: str
) -> None:
    client = start(kind)
    client("[[kernel(100) for _ in range(7)], time.sleep(0.2)]")
    broker.close()
    with PagesBroker(tmp_path / "attach") as later:
        client("[kernel(100), sync()]")
        until(lambda: later.processes[client.pid].known)
        assert later.processes[client.pid].counted()["launches"] == 8


def test_a_broker_that_is_away_silent_or_refuses_holds_nobody_up(libraries: Path, tmp_path: Path, start: Start) -> None:
    client = start("Protected")
    assert client("timed(lambda: max(kernel(1) for _ in range(100)))") < 0.5, "away"
    with PagesBroker(tmp_path / "attach", class_of=lambda pid: 0):
        client = start("BestEffort", init=False)
        assert client("timed(cuda.cuInit, 0)") < 0.5
        assert client("[kernel(1), sync()]") == [0, 0], "refuses"
    with PagesBroker(tmp_path / "attach") as broker:
        broker.silent = True
        client = start("BestEffort", init=False)
        assert 0.9 < client("timed(cuda.cuInit, 0)") < 1.5
        assert client("timed(lambda: max(kernel(1) for _ in range(100)))") < 0.5, "silent"


def test_memory_is_shown_beside_a_class_and_the_broker_says_which(libraries: Path, tmp_path: Path) -> None:
    shown = {
        "GPUSHARE_GPU": "GPU-00000000-0000-0000-0000-000000000000",
        "GPUSHARE_MEMORY_BYTES": str(16 << 30),
        "GPUSHARE_PROCESSES": "1",
        "GPUSHARE_CLASS": "Protected",
    }
    with (
        PagesBroker(tmp_path / "attach", class_of=lambda pid: 2) as broker,
        PacedClient(libraries, tmp_path / "attach", **shown) as client,
    ):
        client("globals().update(n=ctypes.c_size_t())")
        assert client("[cuda.cuInit(0), cuda.cuDeviceTotalMem_v2(ctypes.byref(n), 0), n.value]") == [0, 0, 16 << 30]
        assert client("found('cuDeviceTotalMem')(P(ctypes.addressof(n)), ctypes.c_int(0)) or n.value") == 16 << 30
        assert broker.processes[client.pid].busy is None
        client("kernel(10)")
        assert broker.processes[client.pid].counted()["launches"] == 1


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_no_sanitizer_finds_anything_in_threads_that_launch(tmp_path: Path, sanitizer: str) -> None:
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g")
    libraries = build.container_with_classes(tmp_path / "container", *flags)
    program = build.program(tmp_path, *flags, source="launching.c")
    for kind in ("Protected", "BestEffort"):
        launch_in_threads(program, libraries, tmp_path / kind, kind)


def launch_in_threads(program: Path, libraries: Path, attach: Path, kind: str) -> None:
    """Beside a protected client that comes and goes, works now and then, and a broker that is restarted."""
    given = {"LD_LIBRARY_PATH": str(libraries), "GPUSHARE_ATTACH": str(attach), "GPUSHARE_CLASS": kind}
    brokers = [PagesBroker(attach, sm_percent=50)]
    process = subprocess.Popen([program], env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    turn = 0
    while process.poll() is None and turn < 2000:
        turn += 1
        if turn % 100 == 0:
            brokers[-1].close()
            brokers.append(PagesBroker(attach, sm_percent=50))
        if turn % 10 == 0:
            for page in brokers[-1].own[:-1]:
                brokers[-1].remove(page)
            brokers[-1].protected()
        for page in brokers[-1].own:
            active(page)
        time.sleep(0.002)
    printed, complaint = process.communicate(timeout=120)
    assert (process.returncode, printed) == (0, "failed 0\n"), complaint
    brokers[-1].close()
