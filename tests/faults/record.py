"""What campaigns have found: measurements/results/faults/points.json, from which the next one goes on.

One file, written anew after each run: no build folder has to survive for a campaign of many days.
"""

import json
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localcluster.paths import REPOSITORY
from tests.faults.points import Point

STORED = REPOSITORY / "measurements" / "results" / "faults" / "points.json"
SAME, ENDED, NOT_REACHED = "same", "clients of the GPU ended", "not reached"
LAWFUL = (SAME, ENDED, NOT_REACHED)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one order. `outcome`: one of LAWFUL, or what is different, in words.

    `beside`: how many other orders were carried out in the same run. `retried`: steps that the API server refused
    since the webhook was away, and that were done again. `seconds`: of the run. `date`: in UTC, as 2026-11-23.
    """

    scene: str
    point: str
    when: str
    outcome: str
    beside: int
    retried: tuple[str, ...]
    seconds: float
    date: str


class Record:
    """`afresh`: what the file has is forgotten at the first write."""

    def __init__(self, path: Path = STORED, *, afresh: bool = False) -> None:
        """Raises ValueError for a file that is no record."""
        self.path = path
        self._scenes: dict[str, Any] = {}
        self._points: dict[str, Any] = {}
        self._ends: dict[tuple[str, str], dict[str, Any]] = {}
        if path.exists() and not afresh:
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            stored = json.loads(path.read_text())
            self._scenes, self._points = stored["scenes"], stored["points"]
            self._ends = {(end["point"], end["when"]): end for end in stored["ends"]}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no record of a campaign ({error!r}); --afresh begins another one") from error

    def points(self, scene: str, code: str) -> list[Point]:
        """Those that the scene passed when nobody died, the ones first that few scenes pass.

        Empty: it was never played with this code.
        """
        if self._scenes.get(scene, {}).get("code") != code:
            return []
        mine = {text: entry for text, entry in self._points.items() if scene in entry["passages"]}
        return [
            Point(text, mine[text]["partly"]) for text in sorted(mine, key=lambda text: len(mine[text]["passages"]))
        ]

    def settled(self) -> set[tuple[str, str]]:
        """(point, when) of each end that needs no further run. One that made a difference is tried again."""
        return {key for key, end in self._ends.items() if end["outcome"] in LAWFUL}

    def add_scene(self, scene: str, passed: Counter[Point], seconds: float, code: str) -> None:
        """What it passed when nobody died. What earlier code passed in it is forgotten, with the ends that are no more.

        `code`: names what ran.
        """
        self._scenes[scene] = {"seconds": seconds, "code": code}
        for recorded in self._points.values():
            recorded["passages"].pop(scene, None)
        for point, count in passed.items():
            entry = self._points.setdefault(point.text, {"partly": point.partly, "passages": {}})
            entry["partly"] = point.partly
            entry["passages"][scene] = count
        self._points = {text: entry for text, entry in sorted(self._points.items()) if entry["passages"]}
        moments = {text: Point(text, entry["partly"]).moments() for text, entry in self._points.items()}
        self._ends = {(text, when): end for (text, when), end in self._ends.items() if when in moments.get(text, ())}
        self._save()

    def add(self, results: Iterable[Result]) -> None:
        """A later result of the same end takes the place of an earlier one."""
        for result in results:
            self._ends[result.point, result.when] = asdict(result)
        self._save()

    def _save(self) -> None:
        """Whole or not at all."""
        body = {
            "environment": {"date": today(), "python": platform.python_version(), "kernel": platform.release()},
            "scenes": self._scenes,
            "points": self._points,
            "ends": [self._ends[key] for key in sorted(self._ends)],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text("".join(_lines(body)))
        new.replace(self.path)


def _lines(body: dict[str, Any]) -> Iterator[str]:
    """JSON with a line for each point and each end, so that a campaign's difference can be read."""
    yield "{\n"
    for number, (key, value) in enumerate(body.items()):
        first, last, pairs = "[", "]", [json.dumps(item) for item in value]
        if isinstance(value, dict):
            first, last, pairs = "{", "}", [f"{json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()]
        yield ",\n" if number else ""
        yield f" {json.dumps(key)}: {first}\n  " + ",\n  ".join(pairs) + f"\n {last}"
    yield "\n}\n"


def today() -> str:
    """Today's date in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())
