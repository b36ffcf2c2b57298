"""The result of a comparison: as JSON for programs, as a table and sentences for people. Pure."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.kubectl.rules.trial.cases import CaseOutcome, why_stopped
from gpushare.kubectl.rules.trial.printed import PrintedFigures
from gpushare.kubectl.rules.trial.records import TrialRecord
from gpushare.kubectl.rules.trial.rows import TrialRow, table_of
from gpushare.kubectl.rules.trial.verdict import TrialVerdict, share_of
from gpushare_workload.compare.options import CompareRequest
from gpushare_workload.events import without_folders

SIMULATED = " (simulated)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was measured. `ended` says why it did not run to its end; empty if it did."""

    request: CompareRequest
    environment: Mapping[str, Any]
    timed: bool
    outcomes: tuple[CaseOutcome, ...]
    ended: str = ""

    @property
    def record(self) -> TrialRecord:
        request = self.request
        return TrialRecord(
            programs=[without_folders(program) for program in request.programs],
            plan=request.plan,
            times=request.times,
            outcomes=self.outcomes,
            timed=self.timed,
            environment=self.environment,
            cap=request.cap,
            ended=self.ended,
        )

    @property
    def rows(self) -> list[TrialRow]:
        return self.record.rows

    @property
    def verdict(self) -> TrialVerdict:
        return self.record.verdict

    @property
    def share(self) -> dict[str, Any] | None:
        """The GpuShare to apply, or None."""
        gpu = self.environment.get("gpu", {})
        product = str(gpu.get("product", "")).removesuffix(SIMULATED)
        return share_of(self.verdict, self.rows, self.request.share, product, gpu.get("memory_mib"), self.request.cap)

    def as_json(self) -> dict[str, Any]:
        return self.record.as_json() | {"share": self.share}

    def as_text(self) -> str:
        """The table, what was left out, the verdict, and the share as YAML."""
        parts = [table_of(self.rows, self.timed)]
        parts += why_stopped(self.request.plan, self.outcomes)
        parts += [f"note: {note}" for row in self.rows for note in row.notes]
        parts += [f"This comparison is not complete: {self.ended}"] if self.ended else []
        parts.append(self.verdict.sentence)
        share = self.share
        if share is not None:
            parts.append(f"{APPLY}\n" + "\n".join(yaml_lines(share)))
        return "\n".join(parts)


APPLY = "The share to apply. It takes every GPU of this product; gpus.perNode and nodeSelector of its spec narrow that:"


def read(text: str) -> Comparison:
    """The comparison of a file that `--json` or `kubectl gpushare trial -o json` wrote, judged anew. Raises ValueError
    with what is wrong with the file.
    """
    try:
        found = TrialRecord.from_json(json.loads(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a whole comparison: {type(error).__name__} {error}") from error
    programs = tuple(map(tuple, found.programs))
    request = CompareRequest(programs, found.plan, PrintedFigures(), found.times, cap=found.cap)
    return Comparison(request, found.environment, found.timed, tuple(found.outcomes), found.ended)


def yaml_lines(value: Mapping[str, Any], indent: int = 0) -> list[str]:
    """YAML of mappings, strings, whole numbers and lists of strings: all that a GpuShare here consists of."""
    lines: list[str] = []
    for key, item in value.items():
        begin = " " * indent + f"{key}:"
        if isinstance(item, Mapping):
            lines += [begin, *yaml_lines(item, indent + 2)]
        elif isinstance(item, Sequence) and not isinstance(item, str):
            lines.append(f"{begin} [{', '.join(_quoted(one) for one in item)}]")
        else:
            lines.append(f"{begin} {item}")
    return lines


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def titled(programs: Sequence[Sequence[str]], most: int = 90) -> str:
    """The commands for a title, without folders, shortened."""
    text = " beside ".join(shlex.join(without_folders(program)) for program in programs)
    return text if len(text) <= most else text[: most - 1] + "…"
