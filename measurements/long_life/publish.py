"""measurements/pages/long-life.md and its picture, from measurements/results/faults/long-life.json.

python3 -m measurements.long_life.publish
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import fmean

from localcluster.paths import REPOSITORY
from measurements.long_life import picture
from measurements.long_life.minutes import UNITS, Key, Minutes
from measurements.long_life.record import STORED, Record, Stretch, rows
from measurements.long_life.trend import CONFIDENCE, TOLERATED, WARM_UP_MINUTES, Row, Trend, Verdict, trend
from tests.page_tables import line_of

PAGE = REPOSITORY / "measurements" / "pages" / "long-life.md"
PICTURE = STORED.with_suffix(".svg")
EXPLAINED: Mapping[Key, str] = {
    ("agent", "memory"): "less and less ([below](#as-a-process-ages))",
    ("operator", "memory"): "less and less ([below](#as-a-process-ages))",
}
"""Why a series is not flat, and why that is no leak."""
HALF_HOUR = 30
AGE = """\
## As a process ages

A leak goes on; what fills, ends. Means of the memory of the process of each part that was watched longest, in MiB:
"""
INTRODUCTION = f"""\
# A long life

Does gpushare grow while it runs? `make long-life` does the [random cycles](../../docs/testing.md#random-cycles)
of the tests for hours on one cluster with simulated GPUs: shares come, change and go; clients start, end, ask for too
much, fault and
crash; MPS daemons and servers are killed, the kubelet restarts. Only agent and operator are never killed, so that what
they keep can be seen; the [campaign of accidents](faults.md) kills them at every write. Each 10 s the memory (RSS),
file descriptors and threads of each of our processes are read, what lies below `/run/gpushare` and `/var/run/cdi`, the
size of the GpuNode, and what each part wrote to the API, from the API server's audit log.

A life is lived in stretches that continue each other:

```sh
make long-life MINUTES=60            # adds a stretch to the record, and makes this page and its picture anew
make long-life MINUTES=60 KEEP=1     # leaves the cluster up: the next stretch goes on with the same processes
make long-life MINUTES=60 PAUSE=10   # waits 10 s after each step: for a machine that has other work
```

Each series gets a slope, with a level for each process of its own and the numbers of clients and of shares as further
causes. The margin holds with {CONFIDENCE:.0%}; that neighbouring minutes are alike is taken into account. The first
{WARM_UP_MINUTES} minutes of each process are left out: it fills what it keeps for good.

| verdict | |
| --- | --- |
| {Verdict.FLAT} | slope and margin stay within {TOLERATED:.0%} of the level a day, or one a day where that is more |
| {Verdict.GROWS}, {Verdict.FALLS} | the slope differs from 0 by more than its margin |
| {Verdict.SHORT} | neither can be said yet |
"""


def page(stretches: Sequence[tuple[Stretch, Minutes]]) -> str:
    """measurements/pages/long-life.md."""
    hours = sum(it.minutes for it, _ in stretches) / 60
    series = rows(stretches)
    found = {key: trend(points) for key, points in series.items()}
    lines = [INTRODUCTION, f"## So far: {hours:.1f} hours", ""]
    lines += [_counted([it.verdict for it in found.values() if it]), ""]
    lines += [f"![Memory, file descriptors, threads, disk and writes over {hours:.1f} hours]({_of_docs(PICTURE)})", ""]
    lines += [
        "| part | what | level | slope per hour | processes | hours after warm-up | verdict |",
        "|" + " --- |" * 7,
    ]
    lines += list(_rows(found))
    lines += ["", AGE, *_ages(series)]
    lines += ["", f"The stretches ([each minute]({_of_docs(STORED)})):", ""]
    lines += [
        "| date | minutes | cycles | starts of clients | accidents | seed | commit | broke off |",
        "|" + " --- |" * 8,
    ]
    lines += [_stretch(it) for it, _ in stretches]
    lines += ["", "Accidents: MPS daemons and servers killed, kubelets restarted."]
    return "\n".join(lines) + "\n"


def _counted(verdicts: Sequence[Verdict]) -> str:
    counts = [f"{verdicts.count(it)} {it}" for it in Verdict if it in verdicts]
    return f"{len(verdicts)} series: {', '.join(counts)}."


def _rows(found: Mapping[Key, Trend | None]) -> Iterator[str]:
    for (part, what), it in sorted(found.items(), key=lambda pair: (list(UNITS).index(pair[0][1]), pair[0][0])):
        if it is None:
            continue
        unit = f" {UNITS[what]}" if UNITS[what] else ""
        why = EXPLAINED.get((part, what), "")
        verdict = f"{it.verdict}: {why}" if why and it.verdict is not Verdict.FLAT else str(it.verdict)
        slope = f"{round(it.slope, 6) + 0.0:+.3g} ± {round(it.margin, 6):.2g}"
        yield f"| {part} | {what} | {it.level:.4g}{unit} | {slope} | {it.lives} | {it.hours:.1f} | {verdict} |"


def _ages(series: Mapping[Key, Sequence[Row]]) -> Iterator[str]:
    """A row for each part: the mean of each whole half hour."""
    found = {part: _ages_of(points) for (part, what), points in series.items() if what == "memory"}
    longest = max(map(len, found.values()), default=0)
    spans = (f"{HALF_HOUR * it} to {HALF_HOUR * (it + 1)} min" for it in range(longest))
    yield f"| part | {' | '.join(spans)} |"
    yield "|" + " --- |" * (longest + 1)
    for part, means in sorted(found.items()):
        if means:
            yield f"| {part} | {' | '.join(f'{it:.1f}' for it in means)}{' | ' * (longest - len(means))} |"


def _ages_of(points: Sequence[Row]) -> list[float]:
    by_life: dict[str, list[float]] = {}
    for row in points:
        by_life.setdefault(row.life, []).append(row.value)
    oldest = max(by_life.values(), key=len)
    whole = len(oldest) // HALF_HOUR * HALF_HOUR
    return [fmean(oldest[begin : begin + HALF_HOUR]) for begin in range(0, whole, HALF_HOUR)]


def _stretch(it: Stretch) -> str:
    accidents = sum(count for step, count in it.steps.items() if step.startswith(("kill", "restart")))
    broke_off = it.broke_off.replace("|", "\\|").replace("\n", " ")[:200] or "no"
    starts = it.steps.get("start", 0)
    cells = (it.date, it.minutes, it.cycles, starts, accidents, it.seed, it.commit, broke_off)
    return line_of(*map(str, cells))


def _of_docs(path: object) -> str:
    return os.path.relpath(str(path), PAGE.parent)


def main() -> int:
    stretches = Record().stretches()
    ends = list(accumulate(it.minutes / 60 for it, _ in stretches))
    picture.draw(rows(stretches), ends[:-1], PICTURE)
    PAGE.write_text(page(stretches))
    return 0


if __name__ == "__main__":
    sys.exit(main())
