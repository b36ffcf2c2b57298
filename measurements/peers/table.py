"""The tables of what was measured: a row for each question, a column for each way. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from measurements.peers.cases.accidents import ACCIDENTS

TITLES = {
    "gpushare": "gpushare",
    "gpushare-all-threads": "gpushare, all SMs for each client",
    "gpushare-claims": "gpushare, by claims",
    "nvidia-mps": "NVIDIA device plugin, MPS",
    "nvidia-dra": "NVIDIA DRA driver, MPS",
    "nvidia-time-slicing": "NVIDIA device plugin, time-slicing",
    "bare-mps": "MPS by hand, without limits",
    "bare-slices": "no plugin, time slices",
    "hami-core": "HAMi-core, the library alone",
}
HEADS = {
    "gpushare": "gpushare, slots",
    "gpushare-all-threads": "gpushare, all SMs",
    "gpushare-claims": "gpushare, claims",
    "nvidia-mps": "plugin, MPS",
    "nvidia-dra": "DRA driver, MPS",
    "nvidia-time-slicing": "plugin, slices",
    "bare-mps": "MPS by hand",
    "bare-slices": "slices",
    "hami-core": "HAMi-core",
}
"""TITLES in short, for columns."""
Result = Mapping[str, Any]
Cell = Callable[[Mapping[str, Any]], str]
"""Makes the text of a cell from the figures of all cases of one way."""
NOT_MEASURED = "–"
NO_PODS = "has no pods of its own"
PROMISE = "promise"
REFUSALS = ("Insufficient privileges", "Not enough privilege", "Unknown command", "Invalid process")
"""How the control program answers a command that it does not obey."""
OF_EVERY_POD = "GpuPartGranted"
"""An event about no accident."""


def table(ways: Mapping[str, Result], rows: Mapping[str, Cell] | None = None) -> str:
    """A table in Markdown. Each column's head links to the file that its cells come from. Left out are ways without
    effect, and questions that no way was asked. `rows`: cells by their question; default: ROWS.
    """
    shown = {name: result for name, result in ways.items() if in_effect(result)}
    heads = [f"[{HEADS[name]}]({result['path']})" for name, result in shown.items()]
    lines = [f"| | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    of_each = [_cases(result) for result in shown.values()]
    for question, cell in (rows or ROWS).items():
        cells = [_cell(cell, cases) for cases in of_each]
        if set(cells) != {NOT_MEASURED}:
            lines.append(f"| {question} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def tables(ways: Mapping[str, Result]) -> str:
    """One for each of SECTIONS below its title, with a column for each way that was asked a question of it."""
    parts = []
    for title, rows in SECTIONS.items():
        asked = {
            name: result
            for name, result in ways.items()
            if any(_cell(row, _cases(result)) != NOT_MEASURED for row in rows.values())
        }
        if asked:
            parts.append(f"**{title}**\n\n{table(asked, rows)}")
    return "\n".join(parts)


def in_effect(result: Result) -> bool:
    """Tells whether the way is in effect: it is not where a client sees more memory free than it was promised, since
    then the test has not met the way at all."""
    promised = result.get(PROMISE, {}).get("memory_bytes")
    free_mib = result["cases"].get("limits", {}).get("as started", {}).get("free_mib")
    return not promised or not free_mib or free_mib << 20 <= promised


def _cases(result: Result) -> Mapping[str, Any]:
    return {**result["cases"], PROMISE: result.get(PROMISE, {})}


def _cell(cell: Cell, cases: Mapping[str, Any]) -> str:
    try:
        return cell(cases)
    except KeyError:
        return NOT_MEASURED


def _starts(case: str, which: str) -> Cell:
    def cell(cases: Mapping[str, Any]) -> str:
        spread = cases[case][which]["first_kernel_ended"]
        return f"{spread['median']:.1f} s ({spread['least']:.1f}–{spread['largest']:.1f})"

    return cell


def _users(cases: Mapping[str, Any]) -> str:
    users = cases["users"]
    after = "" if users.get("usable_after", True) else "; none at all afterwards, until it was installed anew"
    return f"{users['computed']} of {users['uids']}{after}"


def _sees(cases: Mapping[str, Any]) -> str:
    return _view(cases["limits"]["as started"])


def _memory(attempt: str) -> Cell:
    def cell(cases: Mapping[str, Any]) -> str:
        outcome = cases["limits"][attempt]
        if cases[PROMISE] and cases[PROMISE]["memory_bytes"] is None:
            return "promises nothing"
        if absent := outcome.get("absent"):
            return f"has no {absent}"
        if outcome["error"] is not None:
            return f"error {outcome['error']['code']}"
        verdict = "refused" if outcome["memory_above_refused"] else "not refused"
        told = [reason for reason in outcome["told"] if reason != OF_EVERY_POD]
        return f"{verdict}; told: {', '.join(told)}" if told else f"{verdict}; nothing told"

    return cell


def _peak(attempt: str) -> Cell:
    def cell(cases: Mapping[str, Any]) -> str:
        outcome = cases["limits"][attempt]
        if absent := outcome.get("absent"):
            return f"no {absent}"
        if outcome["share_of_peak"] is None:
            return f"error {outcome['error']['code']}" if outcome["error"] else NOT_MEASURED
        return f"{outcome['share_of_peak']:.1%}"

    return cell


def _departure(kernel_ms: int) -> Cell:
    def cell(cases: Mapping[str, Any]) -> str:
        figure = cases[f"departures-{kernel_ms}ms"]
        return f"{figure['hurt']} of {figure['neighbours']}; pods deleted: {figure['deletions']}"

    return cell


def _accident(name: str, always: bool = False) -> Cell:
    """Says what the new pod sees if it is not what pods see usually, or `always`."""

    def cell(cases: Mapping[str, Any]) -> str:
        figure = cases[name]
        if absent := figure.get("absent"):
            return f"has no {absent}"
        new = figure["new_client"]
        seconds = new["seconds"]
        after = f"not within {new['not_within_seconds']} s" if seconds is None else f"{seconds:.1f} s"
        usual = cases.get("limits", {}).get("as started", {}).get("sms")
        seen = new.get("sms")
        told = seen is not None and (always or (usual is not None and seen != usual))
        return (
            f"{figure['hurt']} of {figure['neighbours']} died; new pod: {after}{f', sees {_view(new)}' if told else ''}"
        )

    return cell


def _view(seen: Mapping[str, Any]) -> str:
    return f"{seen['sms']} SMs, {seen['free_mib']:,} MiB free"


def _told(cases: Mapping[str, Any]) -> str:
    measured = [name for name in ACCIDENTS if name in cases]
    if not measured:
        return NOT_MEASURED
    reasons = {text.partition(": ")[2] for name in measured for text in cases[name].get("told", ())}
    reasons.discard(OF_EVERY_POD)
    return ", ".join(sorted(reasons)) or "none"


def _commands(who: str) -> Cell:
    def cell(cases: Mapping[str, Any]) -> str:
        if absent := cases["commands"].get("absent"):
            return f"has no {absent}"
        figure = cases["commands"][who]
        if "refused" in figure:
            return "the pod is not admitted"
        obeyed = [answer for answer in figure["answered"].values() if not answer.startswith(REFUSALS)]
        hurt = "neighbour died" if figure["neighbour_hurt"] else "neighbour went on"
        return f"{len(obeyed)} of {figure['asked']} obeyed with an answer; {hurt}"

    return cell


def _rate(load: str) -> Cell:
    def cell(cases: Mapping[str, Any]) -> str:
        figure = cases["throughput"][load]
        rate = figure["kernels_per_second"]["median"]
        return f"{rate:,.0f} /s, p50 {figure['p50_us']:,.0f} µs, p99 {figure['p99_us']:,.0f} µs"

    return cell


def _program(name: str) -> Cell:
    def cell(cases: Mapping[str, Any]) -> str:
        figure = cases["programs"][name]
        return f"{figure['per_second']:,.0f} /s, p50 {figure['p50_ms']:.1f} ms, p99 {figure['p99_ms']:.1f} ms"

    return cell


def _standard(cases: Mapping[str, Any]) -> str:
    return str(cases["privileges"]["clients_meet"])


def _gpu_memory(cases: Mapping[str, Any]) -> str:
    memory = cases["starts"]["gpu_memory_mib"]
    return f"{memory['before']:,} MiB; {memory['with_eight_clients']:,} MiB"


def _rights(cases: Mapping[str, Any]) -> str:
    containers = cases["privileges"]["containers"]
    if not containers:
        return NO_PODS
    privileged = [name for name, rights in containers.items() if rights["privileged"]]
    admin = [name for name, rights in containers.items() if "SYS_ADMIN" in rights["added_capabilities"]]
    host = [name for name, rights in containers.items() if rights["host_pid"]]
    rights = f"{len(privileged)} of {len(containers)} privileged, {len(admin)} more with SYS_ADMIN"
    return f"{rights}; {len(host)} in the host's PID namespace"


def _cost(cases: Mapping[str, Any]) -> str:
    parts = cases["starts"]["parts_with_eight_clients"].values()
    if not parts:
        return NO_PODS
    cpu, memory = (sum(part[key] for part in parts) for key in ("cpu_millicores", "working_set_mib"))
    return f"{cpu:.0f} m CPU, {memory:.0f} MiB"


SECTIONS: dict[str, dict[str, Cell]] = {
    "Starts": {
        "one pod: first kernel done after (median of three, range)": _starts("starts-alone", "one_by_one_seconds"),
        "eight pods at once: first kernel done after (median, range)": _starts("starts", "eight_at_once_seconds"),
        "pods of four UIDs at once, computing within 25 s": _users,
    },
    "What a client sees, and how far its limits hold": {
        "what a client sees": _sees,
        "part of the GPU's peak that a client reaches while the others hardly compute": _peak("as started"),
        "the same, where it asks for 100 % of the threads": _peak("threads: 100 asked for"),
        "the same, where it asks for 4 %": _peak("threads: 4 asked for"),
        "it takes 1 GiB more memory than promised": _memory("as started"),
        "the same, with the limit raised to 140 GiB": _memory("memory: limit raised"),
        "the same, with a malformed limit": _memory("memory: malformed limit"),
        "the same, past the daemon": _memory("past the daemon"),
    },
    "Departures, faults and changes": {
        "pods deleted in kernels of 20 ms: neighbours that died": _departure(20),
        "pods deleted in kernels of 1000 ms: neighbours that died": _departure(1000),
        "an illegal access; seconds from creating the faulty pod until a new one computed": _accident("illegal-access"),
        "a client crashes in mid-kernel": _accident("client-crashes"),
        "half as many clients with twice the limits": _accident("limits-changed", always=True),
        "the node agent's or plugin's pod deleted": _accident("agent-pod-deleted"),
        "the MPS daemon's pod deleted": _accident("daemon-pod-deleted"),
        "the MPS server killed": _accident("server-killed"),
        "the MPS control daemon killed": _accident("daemon-killed"),
        "events about accidents, but for Kubernetes' own": _told,
    },
    "The daemon's commands": {
        "the daemon's commands, from a pod without privileges": _commands("user"),
        "… from a pod that is root": _commands("root"),
    },
    "Throughput": {
        "eight pods, small kernels (8 blocks), waiting after each": _rate("small, depth 1"),
        "small kernels, waiting after sixteen": _rate("small, depth 16"),
        "kernels for all SMs, waiting after each": _rate("saturating, depth 1"),
        "kernels for all, waiting after sixteen": _rate("saturating, depth 16"),
        "eight pods of YOLOS-small, float16, an image at a time": _program("yolos"),
        "eight pods of a GPT of 355 million parameters, tokens": _program("decode-medium"),
    },
    "What it costs, and what it may do": {
        "GPU memory in use: before the first client; with eight idle ones": _gpu_memory,
        "the strictest Pod Security Standard that its clients meet": _standard,
        "its own containers, init containers included": _rights,
        "its own pods with eight clients": _cost,
    },
}
ROWS = {question: cell for rows in SECTIONS.values() for question, cell in rows.items()}
