"""The last campaign on measurements/pages/endurance.md, from measurements/results/faults/points.json.

python3 -m tests.faults.publish
"""

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from localcluster.paths import REPOSITORY
from tests.faults.points import Point
from tests.faults.record import ENDED, LAWFUL, NOT_REACHED, SAME, STORED
from tests.page_tables import filled, head_of, line_of

PAGE = REPOSITORY / "measurements" / "pages" / "endurance.md"
WIDTH = 120
"""The width of a line of the page."""
COUNTS = ("ends", "same", "clients ended", "not reached", "different")


def page(campaign: dict[str, Any]) -> str:
    """measurements/pages/endurance.md with the tables of a campaign, as `record` stores it."""
    return filled(PAGE.read_text(), {"campaign": "\n".join(tables(campaign))})


def tables(campaign: dict[str, Any]) -> list[str]:
    """The lines below "The last campaign"."""
    points, ends = campaign["points"], campaign["ends"]
    ended = {end["point"] for end in ends}
    dates = sorted(end["date"] for end in ends) or [campaign["environment"]["date"]]
    possible = sum(map(_moments, points.items()))
    runs = {(end["scene"], end["date"], end["seconds"]) for end in ends}
    hours = sum(seconds for _, _, seconds in runs) / 3600
    lines = [
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}: {len(points)} points, {len(ended)} of them ended at; "
        f"{len(ends)} ends of the {possible} that are possible",
        f"([each one](../results/faults/points.json)). Runs: {len(runs)}, {hours:.1f} hours together.",
    ]
    lines += ["", *_table(("scene", *COUNTS), _scenes(campaign))]
    lines += ["", "The ends at a point of several scenes are divided among them. By part:", ""]
    lines += _table(("part", *COUNTS), _parts(ends))
    different = [end for end in ends if end["outcome"] not in LAWFUL]
    if different:
        lines += ["", "Different:", ""]
        for end in different:
            told = f"- {end['when']} `{end['point']}` ({end['scene']}): {end['outcome'].splitlines()[0][:300]}"
            lines += textwrap.wrap(told, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return lines


def _scenes(campaign: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for scene in campaign["scenes"]:
        yield scene, *_counts(end for end in campaign["ends"] if end["scene"] == scene)


def _parts(ends: list[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for part in sorted({_part(end) for end in ends}):
        yield part, *_counts(end for end in ends if _part(end) == part)


def _moments(point: tuple[str, dict[str, Any]]) -> int:
    """The number of ways in which the point can be ended at."""
    text, stored = point
    return len(Point(text, stored["partly"]).moments())


def _part(end: dict[str, Any]) -> str:
    return str(end["point"]).partition(": ")[0]


def _counts(ends: Iterable[dict[str, Any]]) -> tuple[int, ...]:
    """Counts of outcomes in the order of COUNTS."""
    outcomes = [end["outcome"] for end in ends]
    return (
        len(outcomes),
        *(outcomes.count(outcome) for outcome in (SAME, ENDED, NOT_REACHED)),
        sum(outcome not in LAWFUL for outcome in outcomes),
    )


def _table(head: Iterable[str], rows: Iterable[tuple[object, ...]]) -> list[str]:
    return [*head_of(*head), *(line_of(*map(str, row)) for row in rows)]


def main() -> int:
    PAGE.write_text(page(json.loads(STORED.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
