"""Writes what was measured into comparison.md: tables of the ways, and how each was installed.

All of it comes from the JSON files that `measurements/peers/run measure` wrote.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.paths import REPOSITORY
from measurements.peers.burst_table import burst_table
from measurements.peers.table import TITLES, Result, tables
from tests.page_tables import filled, head_of, line_of

COMPARISON = REPOSITORY / "measurements" / "pages" / "comparison.md"
PUBLISHED = REPOSITORY / "measurements" / "results" / "h100"
"""The results that the docs show: all ways on one GPU."""
BURSTS = REPOSITORY / "measurements" / "results" / "burst"
"""Those of bursts of pods."""
SHOWN = ("gpushare", "nvidia-mps", "nvidia-dra", "nvidia-time-slicing", "hami-core")
"""The ways with a column in the tables. The others differ little from one of these: their files say how."""


def read(results: Path, simulated_too: bool = False) -> dict[str, Result]:
    """The results by the ways' names. `simulated_too`: also those of simulated GPUs are results.

    Raises LocalClusterError if there are none, or one is of a rehearsal.
    """
    results_by_way = {
        name: json.loads(path.read_text()) for name in TITLES if (path := results / file_of(name)).exists()
    }
    if not results_by_way:
        raise LocalClusterError(
            f"{results} has no peers-*.json: `measurements/peers/run measure`, or `burst`, writes them"
        )
    if not simulated_too and (simulated := [name for name, result in results_by_way.items() if result["simulated"]]):
        raise LocalClusterError(f"{', '.join(simulated)}: figures of a rehearsal are no results")
    return {name: result | {"path": str(results / file_of(name))} for name, result in results_by_way.items()}


def file_of(way: str) -> str:
    """The name of the file with a way's results."""
    return f"peers-{way}.json"


def write(ways: Mapping[str, Result], bursts: Mapping[str, Result]) -> None:
    COMPARISON.write_text(text(ways, bursts))


def text(ways: Mapping[str, Result], bursts: Mapping[str, Result]) -> str:
    """What comparison.md is with these results. What stands outside of the marks stays.

    LocalClusterError: the page has no marks for them.
    """
    linked = _linked(ways, COMPARISON)
    parts = {
        "measured": tables({name: result for name, result in linked.items() if name in SHOWN}),
        "installed": _installed(linked),
        "bursts": burst_table(_linked(bursts, COMPARISON)),
    }
    try:
        return filled(COMPARISON.read_text(), {name: part.rstrip("\n") for name, part in parts.items()})
    except ValueError as error:
        raise LocalClusterError(f"{COMPARISON}: {error}") from error


def _linked(ways: Mapping[str, Result], page: Path) -> dict[str, Result]:
    return {name: {**result, "path": os.path.relpath(result["path"], page.parent)} for name, result in ways.items()}


def _installed(ways: Mapping[str, Result]) -> str:
    """A table of the ways: version, when and where each was measured, and what differed from its documentation."""
    lines = list(head_of("way", "version", "measured", "cases", "installed by", "what differed"))
    for name, result in ways.items():
        origin, gpu, measured = result["origin"], result["truth"], result.get("measured", {})
        commit = f"commit {origin['commit'][:12]}" if "commit" in origin else ""
        version = " ".join(filter(None, (origin["repository"], origin.get("version", ""), commit)))
        tried = [case for case in measured if "absent" not in result["cases"].get(case, {})]
        days = sorted({case["at"][:10] for case in measured.values()}) or [result["environment"]["date"][:10]]
        lines.append(
            line_of(
                f"[{TITLES[name]}]({result['path']})",
                version if origin["repository"] != "none" else "–",
                f"{' and '.join(days)}, {gpu['product']}, driver {gpu['driver']}",
                str(len(tried)),
                origin.get("installed", "as above"),
                "; ".join(f"{what}: {how}" for what, how in origin.get("patched", {}).items()) or "–",
            )
        )
    return "\n".join(lines)
