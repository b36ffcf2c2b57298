"""The table of bursts of pods: a row for each question, a column for each way, in each cell all repeats. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from measurements.peers.table import NOT_MEASURED, Cell, Result, table

CASE = "burst-"
"""How the names of the repeats begin."""
Figures = Mapping[str, Any]


def burst_table(bursts: Mapping[str, Result]) -> str:
    """The table in Markdown."""
    return table(bursts, ROWS)


def _each(say: Callable[[Figures], str]) -> Cell:
    """What every repeat says, in turn; once where all say the same."""

    def cell(cases: Mapping[str, Any]) -> str:
        said = [say(figures) for name, figures in cases.items() if name.startswith(CASE)]
        return said[0] if len(set(said)) == 1 else "; ".join(said) or NOT_MEASURED

    return cell


def _seconds(key: str) -> Cell:
    return _each(lambda burst: f"{burst['seconds'][key]} s")


def _of_a_pod(burst: Figures) -> str:
    spread = burst["seconds"]["of_a_pod"]
    return f"{spread['median']:g} s ({spread['least']:g}–{spread['largest']:g})"


def _by_gpu(pods: Sequence[int]) -> str:
    return f"{pods[0]} on each" if len(set(pods)) == 1 else ", ".join(map(str, pods))


def _beyond(burst: Figures) -> str:
    full = burst["full"]
    return f"{full['waiting']} wait, {full['failed']} failed"


def _overpacked(burst: Figures) -> str:
    return str(max(burst[when]["overpacked"] for when in ("until_full", "after_deletion")))


def _refilled(burst: Figures) -> str:
    seconds = burst["after_deletion"]["seconds"]
    return "none started" if seconds is None else f"{seconds} s"


def _on_the_gpu_with_room(burst: Figures) -> str:
    return f"{burst['after_deletion']['on_the_gpu_with_room']} of {burst['full']['waiting']}"


ROWS: dict[str, Cell] = {
    "all pods created after": _seconds("all_created"),
    "every place taken: last pod bound to the node after": _seconds("all_scheduled"),
    "every place taken: last container started after": _seconds("all_started"),
    "a pod, from its creation until its container started: median (range)": _each(_of_a_pod),
    "pods on the GPUs of the full node": _each(lambda burst: _by_gpu(burst["full"]["pods_by_gpu"])),
    "most pods that one GPU had more than another until then": _each(
        lambda burst: str(burst["until_full"]["largest_difference"])
    ),
    "pods beyond the places": _each(_beyond),
    "GPUs that ever had more pods than places": _each(_overpacked),
    "pods of one GPU deleted: last of those that waited started after": _each(_refilled),
    "… and are on that GPU": _each(_on_the_gpu_with_room),
    "part of the cores' time that nobody used before": _each(lambda burst: f"{burst['idle_percent_before']} %"),
}
