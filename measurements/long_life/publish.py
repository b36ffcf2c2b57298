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
        "stretches": _stretches([stretch for stretch, _ in stretches]),
    }
    return filled(PAGE.read_text(), {name: "\n".join(lines) for name, lines in tables.items()})


def _life(stretches: Sequence[tuple[Stretch, Minutes]]) -> Iterator[str]:
    """How many series there are of each verdict, and those of which something can be said and that are not flat."""
    hours = sum(stretch.minutes for stretch, _ in stretches) / 60
    trends = {key: trend(points) for key, points in rows(stretches).items()}
    known = {key: line for key, line in sorted(trends.items(), key=_order) if line is not None}
    verdicts = [line.verdict for line in known.values()]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict if verdict in verdicts]
    yield f"So far: {hours:.1f} hours, {len(known)} series: {', '.join(counts)}. Those that grow or fall:"
    yield ""
    yield from head_of("part", "what", "level", "slope per hour", "processes", "hours after warm-up")
    for (part, what), line in known.items():
        if line.verdict in (Verdict.GROWS, Verdict.FALLS):
            unit = f" {UNITS[what]}" if UNITS[what] else ""
            slope = f"{round(line.slope, 6) + 0.0:+.3g} ± {round(line.margin, 6):.2g}"
            yield line_of(part, what, f"{line.level:.4g}{unit}", slope, str(line.lives), f"{line.hours:.1f}")


def _order(entry: tuple[Key, object]) -> tuple[int, str]:
    (part, what), _ = entry
    return list(UNITS).index(what), part


def _ages(series: Mapping[Key, Sequence[Row]]) -> Iterator[str]:
    """A row for each part: the mean of each of its first whole half hours."""
    means_by_part = {part: _ages_of(points)[:AGES] for (part, what), points in series.items() if what == "memory"}
    longest = max(map(len, means_by_part.values()), default=0)
    yield from head_of(
        "part", *(f"{HALF_HOUR * number} to {HALF_HOUR * (number + 1)} min" for number in range(longest))
    )
    for part, means in sorted(means_by_part.items()):
        if means:
            yield line_of(part, *(f"{number:.1f}" for number in means), *[""] * (longest - len(means)))


def _ages_of(points: Sequence[Row]) -> list[float]:
    by_life: dict[str, list[float]] = {}
    for row in points:
        by_life.setdefault(row.life, []).append(row.value)
    oldest = max(by_life.values(), key=len)
    whole = len(oldest) // HALF_HOUR * HALF_HOUR
    return [fmean(oldest[begin : begin + HALF_HOUR]) for begin in range(0, whole, HALF_HOUR)]


def _stretches(stretches: Sequence[Stretch]) -> Iterator[str]:
    yield from head_of("date", "minutes", "starts of clients", "accidents", "commit", "broke off")
    for stretch in stretches:
        accidents = sum(count for step, count in stretch.steps.items() if step.startswith(("kill", "restart")))
        broke_off = stretch.broke_off.replace("|", "\\|").replace("\n", " ")[:200] or "no"
        cells = (stretch.date, stretch.minutes, stretch.steps.get("start", 0), accidents, stretch.commit, broke_off)
        yield line_of(*map(str, cells))


def main() -> int:
    stretches = Record().stretches()
    ends = list(accumulate(stretch.minutes / 60 for stretch, _ in stretches))
    picture.draw(rows(stretches), ends[:-1], PICTURE)
    PAGE.write_text(page(stretches))
    return 0


if __name__ == "__main__":
    sys.exit(main())
