"""The long life on measurements/pages/endurance.md and its picture, from measurements/results/faults/long-life.json.

python3 -m measurements.long_life.publish
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import fmean

from localcluster.paths import REPOSITORY
from measurements.long_life import picture
from measurements.long_life.minutes import UNITS, Key, Minutes
from measurements.long_life.record import STORED, Record, Stretch, rows
from measurements.long_life.trend import Row, Verdict, trend
from tests.page_tables import filled, head_of, line_of

PAGE = REPOSITORY / "measurements" / "pages" / "endurance.md"
PICTURE = STORED.with_suffix(".svg")
HALF_HOUR = 30
AGES = 5
"""Half hours of a process, at most, that the page has a column for."""


def page(stretches: Sequence[tuple[Stretch, Minutes]]) -> str:
    """measurements/pages/endurance.md with the tables of these stretches."""
    tables = {
        "life": _life(stretches),
        "ages": _ages(rows(stretches)),
        "stretches": _stretches([it for it, _ in stretches]),
    }
    return filled(PAGE.read_text(), {name: "\n".join(lines) for name, lines in tables.items()})


def _life(stretches: Sequence[tuple[Stretch, Minutes]]) -> Iterator[str]:
    """How many series there are of each verdict, and those of which something can be said and that are not flat."""
    hours = sum(it.minutes for it, _ in stretches) / 60
    trends = {key: trend(points) for key, points in rows(stretches).items()}
    known = {key: it for key, it in sorted(trends.items(), key=_order) if it is not None}
    verdicts = [it.verdict for it in known.values()]
    counts = [f"{verdicts.count(it)} {it}" for it in Verdict if it in verdicts]
    yield f"So far: {hours:.1f} hours, {len(known)} series: {', '.join(counts)}. Those that grow or fall:"
    yield ""
    yield from head_of("part", "what", "level", "slope per hour", "processes", "hours after warm-up")
    for (part, what), it in known.items():
        if it.verdict in (Verdict.GROWS, Verdict.FALLS):
            unit = f" {UNITS[what]}" if UNITS[what] else ""
            slope = f"{round(it.slope, 6) + 0.0:+.3g} ± {round(it.margin, 6):.2g}"
            yield line_of(part, what, f"{it.level:.4g}{unit}", slope, str(it.lives), f"{it.hours:.1f}")


def _order(entry: tuple[Key, object]) -> tuple[int, str]:
    (part, what), _ = entry
    return list(UNITS).index(what), part


def _ages(series: Mapping[Key, Sequence[Row]]) -> Iterator[str]:
    """A row for each part: the mean of each of its first whole half hours."""
    found = {part: _ages_of(points)[:AGES] for (part, what), points in series.items() if what == "memory"}
    longest = max(map(len, found.values()), default=0)
    yield from head_of("part", *(f"{HALF_HOUR * it} to {HALF_HOUR * (it + 1)} min" for it in range(longest)))
    for part, means in sorted(found.items()):
        if means:
            yield line_of(part, *(f"{it:.1f}" for it in means), *[""] * (longest - len(means)))


def _ages_of(points: Sequence[Row]) -> list[float]:
    by_life: dict[str, list[float]] = {}
    for row in points:
        by_life.setdefault(row.life, []).append(row.value)
    oldest = max(by_life.values(), key=len)
    whole = len(oldest) // HALF_HOUR * HALF_HOUR
    return [fmean(oldest[begin : begin + HALF_HOUR]) for begin in range(0, whole, HALF_HOUR)]


def _stretches(stretches: Sequence[Stretch]) -> Iterator[str]:
    yield from head_of("date", "minutes", "starts of clients", "accidents", "commit", "broke off")
    for it in stretches:
        accidents = sum(count for step, count in it.steps.items() if step.startswith(("kill", "restart")))
        broke_off = it.broke_off.replace("|", "\\|").replace("\n", " ")[:200] or "no"
        cells = (it.date, it.minutes, it.steps.get("start", 0), accidents, it.commit, broke_off)
        yield line_of(*map(str, cells))


def main() -> int:
    stretches = Record().stretches()
    ends = list(accumulate(it.minutes / 60 for it, _ in stretches))
    picture.draw(rows(stretches), ends[:-1], PICTURE)
    PAGE.write_text(page(stretches))
    return 0


if __name__ == "__main__":
    sys.exit(main())
