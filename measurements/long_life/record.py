"""measurements/results/faults/long-life.json: the stretches of one long life, which continue each other."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localcluster.paths import REPOSITORY
from measurements.long_life.minutes import Key, Minutes
from measurements.long_life.trend import Row

STORED = REPOSITORY / "measurements" / "results" / "faults" / "long-life.json"


@dataclass(frozen=True)
class Stretch:
    """`cluster`: stretches with the same one went on with the same processes. `broke_off`: why, or empty.

    `steps`: how often each was done.
    """

    date: str
    minutes: int
    cycles: int
    seed: int
    commit: str
    cluster: str
    kernel: str
    cores: int
    steps: dict[str, int]
    broke_off: str


@dataclass(frozen=True)
class Record:
    path: Path = STORED

    def stretches(self) -> list[tuple[Stretch, Minutes]]:
        """The stretches in the order in which they were lived. Raises ValueError for a file that is no record."""
        if not self.path.exists():
            return []
        try:
            return [
                (Stretch(**entry["stretch"]), _minutes(entry))
                for entry in json.loads(self.path.read_text())["stretches"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.path} is no record of a long life ({error!r}): move it away") from error

    def add(self, stretch: Stretch, minutes: Minutes) -> None:
        """Whole or not at all."""
        everything = [*self.stretches(), (stretch, minutes)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text('{"stretches": [\n' + ",\n".join(_text(*entry) for entry in everything) + "\n]}\n")
        new.replace(self.path)


def rows(stretches: Sequence[tuple[Stretch, Minutes]]) -> dict[Key, list[Row]]:
    """Each series through all stretches, in hours that were lived."""
    by_key: dict[Key, list[Row]] = {}
    lived = 0
    for stretch, minutes in stretches:
        for key, lives in minutes.series.items():
            by_key.setdefault(key, []).extend(
                Row((lived + minute) / 60, value, life, *minutes.load[minute])
                for life, points in lives.items()
                for minute, value in points.items()
            )
        lived += stretch.minutes
    return by_key


def _text(stretch: Stretch, minutes: Minutes) -> str:
    """JSON with a line for each series, so that a difference can be read."""
    return "".join(_lines(stretch, minutes))


def _lines(stretch: Stretch, minutes: Minutes) -> Iterator[str]:
    load = [[minute, *values] for minute, values in minutes.load.items()]
    yield f'{{"stretch": {json.dumps(asdict(stretch))},\n "load": {json.dumps(load)},\n "series": [\n'
    lines = [
        json.dumps({"of": part_of, "what": what, "life": life, "points": list(points.items())})
        for (part_of, what), lives in sorted(minutes.series.items())
        for life, points in lives.items()
    ]
    yield "  " + ",\n  ".join(lines) + "\n ]}"


def _minutes(stored: dict[str, Any]) -> Minutes:
    minutes = Minutes({minute: (clients, shares) for minute, clients, shares in stored["load"]})
    for series in stored["series"]:
        minutes.series.setdefault((series["of"], series["what"]), {})[series["life"]] = dict(series["points"])
    return minutes
