"""The scenarios of single commands: their arguments, their expected ends, and the conditions on their figures."""

from collections.abc import Callable
from dataclasses import dataclass

from measurements.gpu.private_mps import THREADS, Events

Verdict = Callable[[Events], bool]


@dataclass(frozen=True, slots=True)
class Case:
    """`told`: a percentage of threads for GPUSHARE_THREADS, other than the limit. `threads`: percent of the SMs for
    each client. `mps` False: without MPS, so several processes share the GPU in time slices. `holds`: the condition on
    the figures of each of `runs`, checked on a real GPU only."""

    name: str
    arguments: tuple[str, ...]
    exit_code: int = 0
    mps: bool = True
    told: int | None = None
    threads: int = THREADS
    holds: Verdict = lambda events: True
    seconds: float = 60.0
    runs: int = 1


def measured(events: Events) -> Events:
    return [event for event in events if event["event"] == "measured"]


def only(events: Events, **fields: object) -> Events:
    return [event for event in events if all(event.get(name) == value for name, value in fields.items())]


def saturated(events: Events) -> bool:
    """Asserts at least two thirds of the granted SMs' share of the peak, so that the upper bound means something."""
    told = only(events, event="throughput")[0]
    return bool(told["share_of_peak"] > told["granted_share"] * 2 / 3)


def streams_overlap(events: Events) -> bool:
    kernels = only(measured(events), what="kernels")[-1]
    pinned = only(measured(events), what="copies and kernels", pinned=True)[-1]
    return bool(kernels["times_as_fast"] > 2 and pinned["times_as_fast"] > 1.2)


def two_connections_overlap(events: Events) -> bool:
    """A client of MPS has two connections to the GPU (CUDA_DEVICE_MAX_CONNECTIONS), however many its streams."""
    kernels = only(measured(events), what="kernels")[-1]
    return bool(1.5 < kernels["times_as_fast"] < 2.2)


def streams_divide(events: Events) -> bool:
    return bool(only(measured(events), what="kernels")[-1]["times_as_fast"] < 1.5)


def graph_is_faster(events: Events) -> bool:
    return bool(only(measured(events), mode="graph")[0]["times_as_fast"] > 1)


def slowdown(events: Events, kind: str, beside: str) -> float:
    return float(only(measured(events), kind=kind, beside=beside)[0]["slowdown"])


def copies_leave_the_sms_alone(events: Events) -> bool:
    return slowdown(events, "compute", "transfer") < 1.3


def slices_are_halves(events: Events) -> bool:
    return slowdown(events, "compute", "compute") > 1.5


def served_all(events: Events) -> bool:
    figure = measured(events)[0]
    seen = (figure["gpu_busy_percent"] or 0) > 0
    return bool(seen and figure["unserved"] == 0 and figure["latency"]["p50_ms"] >= figure["service"]["p50_ms"] * 0.9)


def overloaded(events: Events) -> bool:
    """The service itself is as fast as before; only the waiting time shows the overload."""
    figure = measured(events)[0]
    return bool(figure["latency"]["p99_ms"] > 10 * figure["service"]["p99_ms"])


def placed_and_listed(events: Events) -> bool:
    placed = only(events, event="placed")
    return bool(placed) and all(event["uuid"] == event["pinned_to"] and event["listed_by_nvml"] for event in placed)


def limit_refused(events: Events) -> bool:
    return bool(only(events, event="reached")[0]["refused"])


def limit_escaped(events: Events) -> bool:
    return not limit_refused(events)


def cheaper_the_fewer_processes(events: Events) -> bool:
    """The figure for "a process per call is wasteful", and that two processes are on the GPU at once."""
    rates = {
        event["mode"]: event["tasks_per_second_warm"] for event in measured(events) if "tasks_per_second_warm" in event
    }
    each = only(measured(events), mode="process-per-task")[0]["tasks_per_second"]
    pair = only(measured(events), mode="pair")[0]
    two_gain = pair["together_tasks_per_second"] > 1.2 * pair["alone_tasks_per_second"]
    return bool(each < rates["pool"] and rates["streams"] < rates["batched"] and two_gain)


def ceiling_met(events: Events) -> bool:
    """48 clients, 60 from driver 590 on; the others got error 46."""
    figure = measured(events)[0]
    return figure["accepted"] in (48, 60) and set(figure["refusals"]) <= {"CUDA error 46"}


def gpu_is_one_stage_of_three(events: Events) -> bool:
    """Queues within their bounds, and stages faster than one process."""
    bounded = all(length <= 4 for event in measured(events) for length in event.get("longest_queues", []))
    return bounded and all(event["times_as_fast_least"] > 1 for event in only(measured(events), form="pipeline"))


def overlap_shortens_the_gpus_stage(events: Events) -> bool:
    """Chunks by the time that the GPU's workers spend on all chunks, for each filter."""
    spent = {
        (event["filter"], event["copies"]): event["gpu_seconds"] for event in only(measured(events), form="pipeline")
    }
    filters = {name for name, _ in spent}
    return bool(filters) and all(spent[name, "overlapped"] < spent[name, "pageable"] for name in filters)


def cores_help(events: Events) -> bool:
    """Eight processes that check and store do more than one."""
    rates = {
        event["workers"]["finish"]: event["elements_per_second"] for event in only(measured(events), form="pipeline")
    }
    return bool(rates[8] > 1.5 * rates[1])


def workers_help(events: Events) -> bool:
    rates = {event["processes"]: event["tasks_per_second_warm"] for event in measured(events)}
    return bool(rates[8] > 3 * rates[1])


def splitting_pays(events: Events) -> bool:
    """A grid so large that two capped processes are faster than one."""
    return all(event["times_as_fast_least"] > 1 for event in measured(events) if event["halos"] in ("host", "ipc"))


def all_three_go_on(events: Events) -> bool:
    """Every role, beside the others, gets something done, and inference serves every request."""
    beside = [event for event in measured(events) if event["beside"]]
    served = all(event["unserved"] == 0 for event in only(beside, role="inference"))
    return served and len(beside) >= 3 and all(event["kept"] > 0.05 for event in beside)


def data_passes_through(events: Events) -> bool:
    """The whole is refused, chunks pass, and faster from page-locked memory on several streams."""
    ways = {event["way"]: event for event in measured(events)}
    return bool(ways["whole"]["refused"] and ways["overlapped"]["gib_per_second"] > ways["pageable"]["gib_per_second"])


def turns_fit(events: Events) -> bool:
    """Peaks of 60 % each: one waits for the other and goes on; a peak that is kept shuts the other out."""
    fewest = {event["peaks"]: event["fewest_cycles"] for event in measured(events)}
    return bool(fewest["kept"] == 0 and fewest["in-turns"] > 0 and fewest["together"] > 0)


def nobody_waits(events: Events) -> bool:
    """Under limits that fit the GPU, nobody is refused what its own limit allows."""
    return all(event["refused"] == 0 and event["waited_part"] == 0 for event in measured(events))


def one_at_once(events: Events) -> bool:
    """Time slices: no two processes have a kernel on the GPU at the same moment."""
    return bool(only(measured(events), processes=2)[0]["at_once"] <= 1.05)


def several_at_once(events: Events) -> bool:
    return bool(only(measured(events), processes=2)[0]["at_once"] > 1.3)


def halos_three_ways(events: Events) -> bool:
    return [event["halos"] for event in measured(events)] == [None, "manager", "host", "ipc"]


SMALL = ("--grid", "small")
SIGNALS = ("pipeline", "--filters", "signal", "--elements", "20000000")
LARGE = ("refine", "--size", "4096", "--sweeps", "500", "--look-every", "250", "--tolerance", "0",
         "--halos", "host", "ipc")  # fmt: skip
TRIO = ("trio", "--duration", "1")
CASES = (
    Case("limits_hold", ("limits",), holds=saturated),
    Case("limits_told_otherwise", ("limits",), exit_code=1, told=2 * THREADS),
    Case("streams_of_small_kernels", ("streams", *SMALL), mps=False, holds=streams_overlap),
    Case("streams_of_small_kernels_under_mps", ("streams", *SMALL), holds=two_connections_overlap),
    Case("streams_of_saturating_kernels", ("streams", "--grid", "saturating", "--chunks", "0"), holds=streams_divide),
    Case("streams_of_memory_kernels", ("streams", *SMALL, "--kind", "memory", "--chunks", "0")),
    Case("streams_of_transfers", ("streams", *SMALL, "--kind", "transfer", "--chunks", "0")),
    Case("graph", ("graph",), holds=graph_is_faster),
    Case("graph_in_4_processes", ("graph", "--processes", "4"), holds=graph_is_faster),
    Case("graph_in_4_time_slices", ("graph", "--processes", "4"), mps=False),
    Case(
        "pipeline",
        ("pipeline", "--filters", "add", "normalise", "--copies", "pageable", "overlapped"),
        holds=overlap_shortens_the_gpus_stage,
    ),
    Case("pipeline_of_signals", (*SIGNALS,), holds=gpu_is_one_stage_of_three),
    Case(
        "pipeline_of_1_to_16",
        (*SIGNALS, "--copies", "overlapped", "--prepare", "2", "--finish", "1", "4", "8", "16"),
        holds=cores_help,
    ),
    Case(
        "pipeline_of_2_gpu_workers",
        (*SIGNALS, "--copies", "overlapped", "--gpu-workers", "2"),
        holds=gpu_is_one_stage_of_three,
    ),
    Case("refine", ("refine",), holds=halos_three_ways),
    Case("refine_a_larger_grid", (*LARGE, "--processes", "2"), holds=splitting_pays),
    Case("refine_a_larger_grid_of_4", (*LARGE, "--processes", "4"), holds=splitting_pays),
    Case("refine_a_larger_grid_uncapped", (*LARGE, "--processes", "2"), threads=100),
    Case("pin", ("pin",), mps=False, holds=placed_and_listed),
    Case("pin_under_mps", ("pin",), holds=placed_and_listed),
    Case("overlap_in_time_slices", ("overlap",), mps=False, holds=one_at_once),
    Case("overlap_under_mps", ("overlap",), holds=several_at_once),
    Case("mix", ("mix", "--repeats", "1"), holds=copies_leave_the_sms_alone),
    Case("mix_in_time_slices", ("mix", "--repeats", "1"), mps=False, holds=slices_are_halves),
    Case("trio_in_time_slices", TRIO, mps=False),
    Case("trio", (*TRIO, "--threads", "50"), threads=100, holds=all_three_go_on),
    Case("oversize", ("oversize",), holds=data_passes_through),
    Case("swell", ("swell", "--duration", "2"), mps=False, holds=turns_fit, seconds=90),
    Case("swell_under_limits", ("swell", "--duration", "2"), holds=nobody_waits, seconds=90),
    Case("serve", ("serve", "--rate", "200", "--duration", "5"), holds=served_all, runs=3),
    Case("serve_overloaded", ("serve", "--rate", "40000", "--duration", "2"), holds=overloaded),
    Case("hog_within_its_grant", ("hog", "--hold", "1"), holds=limit_refused),
    Case("hog_that_garbles_its_limit", ("hog", "--escape", "garble", "--hold", "1"), exit_code=1, holds=limit_escaped),
    # The daemon's default limit binds then, which is twice the grant here.
    Case("hog_that_unsets_its_limit", ("hog", "--escape", "unset", "--hold", "1"), exit_code=1, holds=limit_escaped),
    Case(
        "hog_that_reaches_beyond_the_default",
        ("hog", "--escape", "unset", "--above", "8192", "--hold", "1"),
        exit_code=1,
        holds=limit_refused,
    ),
    Case(
        "pool_of_100_tasks",
        ("pool", "--tasks", "100", "--workers", "8", "--repeats", "1"),
        holds=cheaper_the_fewer_processes,
        seconds=90,
    ),
    Case(
        "pool_warm",
        ("pool", "--tasks", "2000", "--workers", "8", "--modes", "pool", "streams", "batched"),
        seconds=90,
    ),
    Case(
        "pool_of_1_to_32",
        ("pool", "--tasks", "200", "--workers", "1", "4", "8", "16", "32", "--modes", "pool", "--prepare", "5"),
        holds=workers_help,
        seconds=90,
    ),
    Case(
        "pool_meets_the_ceiling",
        ("pool", "--tasks", "1", "--modes", "ceiling", "--clients", "64"),
        holds=ceiling_met,
        seconds=120,
    ),
)
