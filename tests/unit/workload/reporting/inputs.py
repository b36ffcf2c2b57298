"""Files as `bench`, `mix` and `overlap` write them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.document import Document
from tests.unit.workload.results.made_up import run

SCALING = [
    run(mode, [kernels] * clients, repeat, memory_mib={1000 + client: 520 for client in range(clients)})
    for repeat in (0, 1)
    for clients in (1, 2)
    for mode, kernels in ((SharingMode.TIME_SLICING, 100 // clients), (SharingMode.MPS, 100))
]
DEEP = [
    replace(each, load=Load(LoadKind.COMPUTE, Grid.SMALL, 64))
    for each in SCALING
    if each.mode is SharingMode.TIME_SLICING
]
DEEP += [replace(each, mode=SharingMode.MPS, threads=100.0) for each in DEEP]
"""MPS at depth 64 gains nothing."""


def _line(scenario: str, event: str, sharing: str, threads: float, timed: bool, **figures: Any) -> str:
    setting = {"backend": "cupy", "timed": timed, "sharing": sharing, "threads_percent": threads}
    return json.dumps({"scenario": scenario, "event": event, **setting, **figures})


def pair(
    *kinds: str,
    combined: float,
    sharing: str = "mps",
    threads: float = 100.0,
    verdict: str = "partly",
    timed: bool = True,
) -> str:
    spread = {"combined": combined, "combined_least": combined - 0.01, "combined_largest": combined + 0.01}
    return _line("mix", "pair", sharing, threads, timed, kinds=kinds, verdict=verdict, repeats=3, **spread)


def overlap(sharing: str, at_once: float, processes: int = 2, threads: float = 100.0) -> tuple[str, str]:
    """The figures and the timeline."""
    work = {"grid": "small", "depth": 1, "processes": processes}
    rate = {"launches_per_second": 10.0, "launches_per_second_least": 9.0, "launches_per_second_largest": 11.0}
    concurrency = {"at_once": at_once, "at_once_least": at_once, "at_once_largest": at_once}
    if sharing == "mps":  # files of earlier versions have none
        concurrency |= {
            "any_running_percent": 96.0,
            "any_running_percent_least": 95.0,
            "any_running_percent_largest": 97.0,
        }
    sms = {"sms_of_each": [8] * processes, "sms_of_several": 0}
    pieces = [[index, 10.0 * index, 10.0 * index + 5] for index in range(processes)]
    return (
        _line("overlap", "measured", sharing, threads, True, **work, **rate, **concurrency, **sms),
        _line("overlap", "timeline", sharing, threads, True, **work, microseconds=pieces),
    )


def written(directory: Path, *documents: Document, lines: tuple[str, ...] = ()) -> list[Path]:
    paths = []
    for number, document in enumerate(documents):
        paths.append(directory / f"{number}.json")
        paths[-1].write_text(json.dumps(document.as_json()))
    if lines:
        paths.append(directory / "mix.log")
        paths[-1].write_text("\n".join(lines))
    return paths
