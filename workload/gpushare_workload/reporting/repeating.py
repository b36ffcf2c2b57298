"""The commands that repeat what the page shows. Pure.

A benchmark's file holds its command. The lines of `mix` and `overlap` hold none: theirs is made from
what the lines say.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from gpushare_workload.results.document import Document
from gpushare_workload.results.files import Overlap, Pair, Setting

IN_SLICES = "# In time slices: where a process reaches no MPS daemon."
UNDER_MPS = "# Under MPS: where it reaches one, as in a pod of a share."


def benchmarks(documents: Sequence[Document]) -> list[str]:
    """Each command once."""
    lines = []
    for document in documents:
        words = ["gpushare-workload", *(_anywhere(word) for word in document.command[1:])]
        lines.append(shlex.join(words))
    return list(dict.fromkeys(lines))


def _anywhere(word: str) -> str:
    """The last part of an absolute path: the folder was that of one machine."""
    return Path(word).name if word.startswith("/") else word


def scenarios(pairs: Sequence[Pair], overlaps: Sequence[Overlap]) -> list[str]:
    """`mix` and `overlap`, in time slices and then under MPS, each below a line that says where to run it."""
    lines, beside = [], [overlap for overlap in overlaps if overlap.processes > 1]
    for sharing, remark in (("time-slicing", IN_SLICES), ("mps", UNDER_MPS)):
        commands = [
            *_mixes([pair for pair in pairs if pair.setting.sharing == sharing]),
            *_overlaps([overlap for overlap in beside if overlap.setting.sharing == sharing]),
        ]
        lines += [remark, *commands] if commands else []
    return lines


def _mixes(pairs: Sequence[Pair]) -> list[str]:
    """One command for all pairs: it measures them all."""
    if not pairs:
        return []
    settings = [pair.setting for pair in pairs]
    return [_command("mix", [], settings, pairs[-1].repeats, f"mix-{settings[0].sharing}")]


def _overlaps(overlaps: Sequence[Overlap]) -> list[str]:
    """One command for each kind of kernels and number of processes: its limits are measured in turns."""
    by_kind: dict[tuple[str, int, int], list[Overlap]] = {}
    for overlap in overlaps:
        by_kind.setdefault((overlap.grid, overlap.processes, overlap.depth), []).append(overlap)
    return [
        _command(
            "overlap",
            ["--grid", grid, "--processes", str(processes), "--depth", str(depth)],
            [overlap.setting for overlap in each],
            each[-1].repeats,
            f"overlap-{grid}-{processes}-{depth}-{each[0].setting.sharing}",
        )
        for (grid, processes, depth), each in by_kind.items()
    ]


def _command(scenario: str, options: Sequence[str], settings: Sequence[Setting], repeats: int | None, name: str) -> str:
    threads = [f"{percent:g}" for percent in sorted({setting.threads for setting in settings}, reverse=True)]
    words = ["gpushare-workload", "run", scenario, *options]
    words += ["--threads", *threads] if threads != ["100"] else []
    words += ["--repeats", str(repeats)] if repeats is not None else []
    return f"{shlex.join(words)} > {name}.jsonl"
