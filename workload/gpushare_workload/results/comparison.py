"""The result of a comparison: as JSON for programs, as a table and sentences for people. Pure."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.kubectl.rules.trial.records import TrialRecord
from gpushare.kubectl.rules.trial.rows import TrialRow, table_of
from gpushare.kubectl.rules.trial.share import share_of
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
        gpu = self.record.environment.get("gpu", {})
        product = str(gpu.get("product", "")).removesuffix(SIMULATED)
        return share_of(self.verdict, self.rows, self.share_name, product, gpu.get("memory_mib"), self.record.cap)

    def as_json(self) -> dict[str, Any]:
        return self.record.as_json() | {"share": self.share}

    def as_text(self) -> str:
        """The table, what was left out, the verdict, and the share as YAML."""
        record = self.record
        parts = [table_of(record.rows, record.timed), *record.stopped]
        parts += [f"note: {note}" for row in record.rows for note in row.notes]
        parts += [f"This comparison is not complete: {record.ended}"] if record.ended else []
        parts.append(record.verdict.sentence)
        if (share := self.share) is not None:
            parts.append(f"{APPLY}\n" + "\n".join(yaml_lines(share)))
        return "\n".join(parts)


def read(text: str) -> Comparison:
    """The comparison of a file that `--json` or `kubectl gpushare trial -o json` wrote, judged anew.

    Raises ValueError with what is wrong with the file.
    """
    try:
        return Comparison(TrialRecord.from_json(json.loads(text)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a whole comparison: {type(error).__name__} {error}") from error


def yaml_lines(value: Mapping[str, Any], indent: int = 0) -> list[str]:
    """YAML of mappings, strings, whole numbers and lists of strings: all that a GpuShare here consists of."""
    lines: list[str] = []
    for key, item in value.items():
        begin = " " * indent + f"{key}:"
        if isinstance(item, Mapping):
            lines += [begin, *yaml_lines(item, indent + 2)]
        elif isinstance(item, Sequence) and not isinstance(item, str):
            lines.append(f"{begin} [{', '.join(_quoted(text) for text in item)}]")
        else:
            lines.append(f"{begin} {item}")
    return lines


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def titled(programs: Sequence[Sequence[str]], most: int = 90) -> str:
    """The commands for a title, without folders, shortened."""
    text = " beside ".join(shlex.join(without_folders(program)) for program in programs)
    return text if len(text) <= most else text[: most - 1] + "…"
