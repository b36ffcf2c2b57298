"""The result of a comparison: as JSON for programs, as a table and sentences for people. Pure."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.kubectl.rules.trial.apply import (
    THREADS,
    annotations_of,
    as_yaml,
    pod_of,
    share_beside,
    share_of,
    template_of,
)
from gpushare.kubectl.rules.trial.protect import JobWay
from gpushare.kubectl.rules.trial.records import TrialRecord
from gpushare.kubectl.rules.trial.rows import TrialRow, table_of
from gpushare.kubectl.rules.trial.verdict import TrialVerdict
from gpushare_workload.events import without_folders

SIMULATED = " (simulated)"
APPLY = "The share to apply. It takes every GPU of this product; gpus.perNode and nodeSelector of its spec narrow that:"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was measured, and the name of the share that may follow from it."""

    record: TrialRecord
    share_name: str = "trial"

    @property
    def rows(self) -> list[TrialRow]:
        return self.record.rows

    @property
    def verdict(self) -> TrialVerdict:
        return self.record.verdict

    @property
    def share(self) -> dict[str, Any] | None:
        """The GpuShare to apply, or None."""
        gpu, best = self.record.environment.get("gpu", {}), self.verdict.best
        product, memory = str(gpu.get("product", "")).removesuffix(SIMULATED), gpu.get("memory_mib")
        if self.record.plan.protect is not None:
            way = best.case.way if best is not None else None
            return None if way is None else share_beside(way, self.rows, self.share_name, product, memory)
        return share_of(self.verdict, self.rows, self.share_name, product, memory, self.record.cap)

    @property
    def pods(self) -> list[dict[str, Any]]:
        """Of a service and the job beside it, for that share; empty without one."""
        share, best = self.share, self.verdict.best
        way = best.case.way if best is not None else None
        if share is None or way is None:
            return []
        named = zip(("service", "job"), self.record.programs, strict=True)
        return [
            pod_of(name, template_of(name, program), name, self.share_name, _annotations(way, name == "service"))
            for name, program in named
        ]

    @property
    def pods_json(self) -> dict[str, Any]:
        """The field with the pods; none in a comparison of copies."""
        return {"pods": self.pods} if self.record.plan.protect is not None else {}

    def as_json(self) -> dict[str, Any]:
        return self.record.as_json() | {"share": self.share} | self.pods_json

    def as_text(self) -> str:
        """The table, what was left out, the verdict, and the share as YAML."""
        record = self.record
        parts = [table_of(record.rows, record.timed), *record.stopped]
        parts += [f"note: {note}" for row in record.rows for note in row.notes]
        parts += [f"This comparison is not complete: {record.ended}"] if record.ended else []
        parts.append(record.verdict.sentence)
        if (share := self.share) is not None:
            parts.append(f"{APPLY}\n{as_yaml([share, *self.pods])}")
        return "\n".join(parts)


def read(text: str) -> Comparison:
    """The comparison of a file that `--json` or `kubectl gpushare trial -o json` wrote, judged anew.

    Raises ValueError with what is wrong with the file.
    """
    try:
        return Comparison(TrialRecord.from_json(json.loads(text)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a whole comparison: {type(error).__name__} {error}") from error


def _annotations(way: JobWay, service: bool) -> dict[str, str]:
    """A service beside a capped job names the whole GPU's threads, since the share's default is the cap."""
    whole = {THREADS: "100"} if service and not way.best_effort and way.percent < 100 else {}
    return annotations_of(way, service, classes=way.best_effort) | whole


def titled(programs: Sequence[Sequence[str]], most: int = 90) -> str:
    """The commands for a title, without folders, shortened."""
    text = " beside ".join(shlex.join(without_folders(program)) for program in programs)
    return text if len(text) <= most else text[: most - 1] + "…"
