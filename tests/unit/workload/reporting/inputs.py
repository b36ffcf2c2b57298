"""Files as `bench` and `mix` write them."""

import json
from pathlib import Path

from gpushare_workload.bench.plan import SharingMode
from gpushare_workload.bench.results.document import Document
from tests.unit.workload.bench.made_up import run

SCALING = [
    run(mode, [kernels] * clients, repeat, memory_mib={1000 + it: 520 for it in range(clients)})
    for repeat in (0, 1)
    for clients in (1, 2)
    for mode, kernels in ((SharingMode.TIME_SLICING, 100 // clients), (SharingMode.MPS, 100))
]


def mix(kind: str, beside: str | None, slowdown: float, timed: bool = True) -> str:
    figures = {"launches_per_second": 100 / slowdown, "slowdown": slowdown}
    line = {"scenario": "mix", "event": "measured", "backend": "cupy", "timed": timed, "kind": kind, "beside": beside}
    return json.dumps({**line, **figures})


def written(directory: Path, *documents: Document, lines: tuple[str, ...] = ()) -> list[Path]:
    paths = []
    for number, one in enumerate(documents):
        paths.append(directory / f"{number}.json")
        paths[-1].write_text(json.dumps(one.as_json()))
    if lines:
        paths.append(directory / "mix.log")
        paths[-1].write_text("\n".join(lines))
    return paths
