"""Writes what was measured into the docs: the tables of all ways, and how each peer was installed and what it has.

All of it comes from the JSON files that `measurements/peers/run measure` wrote.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localcluster.errors import LocalClusterError
from localcluster.paths import REPOSITORY
from measurements.peers.burst_table import burst_table
from measurements.peers.table import TITLES, Result, tables
from tests.page_tables import filled, head_of, line_of

COMPARISON = REPOSITORY / "measurements" / "pages" / "comparison.md"
PEERS = REPOSITORY / "measurements" / "pages" / "peers"
PUBLISHED = REPOSITORY / "measurements" / "results" / "h100"
"""The results that the docs show: all ways on one GPU."""
BURSTS = REPOSITORY / "measurements" / "results" / "burst"
"""Those of bursts of pods."""
PAGES: Mapping[str, Sequence[str]] = {
    "gpushare.md": ("gpushare", "gpushare-all-threads", "gpushare-claims"),
    "nvidia-device-plugin.md": ("nvidia-mps", "nvidia-time-slicing"),
    "nvidia-dra-driver.md": ("nvidia-dra",),
    "hami-core.md": ("hami-core",),
    "bare.md": ("bare-mps", "bare-slices"),
}
"""The ways that a page of measurements/pages/peers is about."""
RIGHTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "privileged": lambda it: "yes" if it["privileged"] else "no",
    "capabilities": lambda it: _capabilities(it),
    "user": lambda it: "of the image" if it["user"] is None else str(it["user"]),
    "root file system": lambda it: "read-only" if it["read_only_root"] else "writable",
    "host's PIDs": lambda it: "yes" if it["host_pid"] else "no",
    "writes on the node": lambda it: ", ".join(f"`{path}`" for path in it["host_paths_writable"]) or "nothing",
    "API token": lambda it: "yes" if it["api_token"] else "no",
}


def read(results: Path, simulated_too: bool = False) -> dict[str, Result]:
    """The results by the ways' names. `simulated_too`: also those of simulated GPUs are results.

    Raises LocalClusterError if there are none, or one is of a rehearsal.
    """
    found = {name: json.loads(path.read_text()) for name in TITLES if (path := results / file_of(name)).exists()}
    if not found:
        raise LocalClusterError(
            f"{results} has no peers-*.json: `measurements/peers/run measure`, or `burst`, writes them"
        )
    if not simulated_too and (simulated := [name for name, result in found.items() if result["simulated"]]):
        raise LocalClusterError(f"{', '.join(simulated)}: figures of a rehearsal are no results")
    return {name: result | {"path": str(results / file_of(name))} for name, result in found.items()}


def file_of(way: str) -> str:
    """The name of the file with a way's results."""
    return f"peers-{way}.json"


def write(found: Mapping[str, Result], bursts: Mapping[str, Result]) -> None:
    for page, text in texts(found, bursts).items():
        page.write_text(text)


def texts(found: Mapping[str, Result], bursts: Mapping[str, Result]) -> dict[Path, str]:
    """What each page is with these results, by its path. What stands outside of the marks stays.

    LocalClusterError: a page has no marks for them.
    """
    compared = {
        "measured": tables(_linked(found, COMPARISON)),
        "bursts": burst_table(_linked(bursts, COMPARISON)),
    }
    pages = {COMPARISON: _filled(COMPARISON, compared)}
    for name, ways in PAGES.items():
        page = PEERS / name
        linked = _linked(found, page)
        text = "\n".join(_peer(TITLES[way], linked.get(way)) for way in ways)
        pages[page] = _filled(page, {"measured": text})
    return pages


def _linked(found: Mapping[str, Result], page: Path) -> dict[str, Result]:
    return {name: {**it, "path": os.path.relpath(it["path"], page.parent)} for name, it in found.items()}


def _filled(page: Path, texts: Mapping[str, str]) -> str:
    try:
        return filled(page.read_text(), {name: text.rstrip("\n") for name, text in texts.items()})
    except ValueError as error:
        raise LocalClusterError(f"{page}: {error}") from error


def _peer(title: str, result: Result | None) -> str:
    if result is None:
        return f"## {title}\n\nNot measured yet.\n"
    blocks = [f"## {title}", _installed(result)]
    if patched := result["origin"].get("patched"):
        blocks.append(_rows(("what differed", "how"), patched.items()))
    if containers := result["cases"].get("privileges", {}).get("containers"):
        cells = ((name, *(cell(it) for cell in RIGHTS.values())) for name, it in containers.items())
        blocks.append(_rows(("container", *RIGHTS), cells))
    if costs := result["cases"].get("starts", {}).get("parts_with_eight_clients"):
        blocks.append(_rows(("container, with eight clients", "CPU", "memory"), map(_cost, sorted(costs.items()))))
    return "\n\n".join(blocks) + "\n"


def _installed(result: Result) -> str:
    origin, gpu = result["origin"], result["truth"]
    commit = f", commit {origin['commit'][:12]}, {origin['compiler']}" if "commit" in origin else ""
    version = f"{origin['repository']} {origin.get('version', '')}".strip()
    where = f"{gpu['product']}, driver {gpu['driver']}"
    measured = result.get("measured", {})
    tried = [case for name, case in measured.items() if "absent" not in result["cases"].get(name, {})]
    took = f" Cases: {len(tried)}, in {sum(case['seconds'] for case in tried):.0f} s." if tried else ""
    days = sorted({case["at"][:10] for case in measured.values()}) or [result["environment"]["date"][:10]]
    how = f" Installed by: {origin['installed']}." if "installed" in origin else ""
    of_what = "from" if origin["repository"] == "none" else f"of {version}{commit},\non"
    return (
        f"[The results]({result['path']}) are {of_what} an {where}, {' and '.join(days)}.\n"
        f"It offered its parts {result['installed_seconds']:.0f} s after the installation began.{took}{how}"
    )


def _capabilities(it: Mapping[str, Any]) -> str:
    if it["privileged"]:
        return "all"
    dropped = "none" if it["all_dropped"] else "the runtime's default"
    added = ", ".join(it["added_capabilities"])
    return f"{dropped}, and {added}" if added else dropped


def _cost(entry: tuple[str, Mapping[str, float]]) -> tuple[str, str, str]:
    name, figures = entry
    return name, f"{figures['cpu_millicores']:.1f} m", f"{figures['working_set_mib']:.0f} MiB"


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([*head_of(*head), *(line_of(*row) for row in rows)])
