"""Draws the pictures of the documentation: `python docs/images/draw.py`; a test holds the files to it.

Guarantees: each picture follows the reader's light or dark theme by itself, brings its own background, and loads
nothing. A text wider than its box raises an error here, by an estimate of its width that is on the safe side.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LATENCIES = FOLDER.parents[1] / "measurements" / "results" / "h200" / "latency-classes.json"

# class -> (light fill, light stroke, dark fill, dark stroke)
BOXES = {
    "zone": ("#f6f8fa", "#d0d7de", "#161b22", "#3d444d"),
    "ours": ("#e3f3e6", "#2f8132", "#16301d", "#57ab5a"),
    "object": ("#fff5d6", "#a07700", "#33290d", "#d4a72c"),
    "files": ("#f3ebff", "#7a4fc0", "#2a2140", "#b392f0"),
    "other": ("#ffffff", "#6e7781", "#21262d", "#8b949e"),
    "gpu": ("#e4ecfa", "#2f5fb3", "#16253f", "#6cb6ff"),
    "note": ("#fff8c5", "#d4a72c", "#2b2611", "#9e7e1c"),
}
# class -> (light, dark)
TEXTS = {"t": ("#1f2328", "#e6edf3"), "s": ("#4b535d", "#b1bac4"), "m": ("#1f2328", "#e6edf3")}
LINE = ("#57606a", "#9aa4af")
LOUD = ("#b3261e", "#ff8a80")
PAPER = ("#ffffff", "#0d1117")
WIDTHS = {"t": 8.2, "s": 6.6, "m": 6.9}
"""Pixels of one character, on the safe side: title 15 px bold, small 13 px, message 13.5 px."""


class TooWide(ValueError):
    """A text does not fit."""


@dataclass
class Picture:
    """A drawing of `width` × `height` pixels; `title` is what a screen reader says."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        radius = 10 if kind == "zone" else 6
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}"/>')

    def text(self, kind: str, x: float, y: float, text: str, *, room: float = 0, anchor: str = "start") -> None:
        """`room`: the width that there is for it, where it stands in something."""
        if room and len(text) * WIDTHS[kind] > room:
            raise TooWide(f"{text!r} needs {len(text) * WIDTHS[kind]:.0f} px and has {room:.0f}")
        align = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}"{align}>{escape(text)}</text>')

    def card(self, kind: str, x: float, y: float, width: float, height: float, title: str, *lines: str) -> None:
        """A box with a title and small lines below it."""
        self.box(kind, x, y, width, height)
        self.text("t", x + 12, y + 22, title, room=width - 18)
        for number, line in enumerate(lines):
            self.text("s", x + 12, y + 41 + 17 * number, line, room=width - 18)

    def arrow(self, *points: tuple[float, float], kind: str = "a") -> None:
        """Through all points; `kind`: a, or d for an answer, or loud."""
        path = "M" + " L".join(f"{x},{y}" for x, y in points)
        self.parts.append(f'<path class="{kind}" d="{path}"/>')

    def label(self, x: float, y: float, *lines: str, anchor: str = "start") -> None:
        for number, line in enumerate(lines):
            self.text("s", x, y + 15 * number, line, anchor=anchor)

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="Helvetica, Arial, sans-serif">'
        )
        markers = "".join(
            f'<marker id="{name}" markerUnits="userSpaceOnUse" markerWidth="10" markerHeight="10" refX="9" refY="5" '
            f'orient="auto">'
            f'<path class="{name}" d="M0,0 L10,5 L0,10 z"/></marker>'
            for name in ("head", "loudhead")
        )
        paper = f'<rect class="paper" width="{self.width}" height="{self.height}" rx="10"/>'
        lines = [head, f"<title>{escape(self.title)}</title>", f"<style>\n{_style()}\n</style>"]
        return "\n".join([*lines, f"<defs>{markers}</defs>", paper, *self.parts, "</svg>", ""])


def _style() -> str:
    fixed = [
        "text.t { font-size: 15px; font-weight: bold } text.s { font-size: 13px } text.m { font-size: 13.5px }",
        "path.a, path.d, path.loud { stroke-width: 1.5; fill: none; marker-end: url(#head) }",
        "path.d { stroke-dasharray: 5 4 } path.loud { marker-end: url(#loudhead) }",
        "line.life { stroke-width: 1; stroke-dasharray: 3 5 } rect { stroke-width: 1.3 } rect.paper { stroke: none }",
    ]
    dark = "\n".join(f"  {rule}" for rule in _colours(1))
    return "\n".join([*fixed, *_colours(0), "@media (prefers-color-scheme: dark) {", dark, "}"])


def _colours(theme: int) -> Iterable[str]:
    for name, colours in BOXES.items():
        yield f"rect.{name} {{ fill: {colours[2 * theme]}; stroke: {colours[2 * theme + 1]} }}"
    for name, shades in TEXTS.items():
        yield f"text.{name} {{ fill: {shades[theme]} }}"
    yield f"path.a, path.d, line.life {{ stroke: {LINE[theme]} }} path.head {{ fill: {LINE[theme]} }}"
    yield f"path.loud {{ stroke: {LOUD[theme]} }} path.loudhead {{ fill: {LOUD[theme]} }}"
    yield f"rect.paper {{ fill: {PAPER[theme]} }}"


@dataclass(frozen=True)
class Message:
    """From one participant to another, or to itself; `answer`: dashed; `loud`: what the picture is about."""

    source: int
    target: int
    lines: Sequence[str]
    answer: bool = False
    loud: bool = False


@dataclass(frozen=True)
class Note:
    """A text over the participants from `first` to `last`."""

    first: int
    last: int
    lines: Sequence[str]


def call(source: int, target: int, *lines: str) -> Message:
    return Message(source, target, lines)


def answer(source: int, target: int, *lines: str) -> Message:
    return Message(source, target, lines, answer=True)


def key(source: int, target: int, *lines: str) -> Message:
    return Message(source, target, lines, loud=True)


def note(first: int, last: int, *lines: str) -> Note:
    return Note(first, last, lines)


TOP, HEAD, LINE_HEIGHT = 16, 48, 16


def sequence(
    title: str, participants: Sequence[tuple[str, str, str]], gap: int, steps: Sequence[Message | Note]
) -> str:
    """Participants are (kind of box, name, second line), `gap` pixels apart; steps follow from top to bottom."""
    centres = [20 + gap / 2 + gap * number for number in range(len(participants))]
    picture = Picture(40 + gap * len(participants), 0, title)
    y = TOP + HEAD + 18
    for step in steps:
        y = _note(picture, step, y, centres, gap) if isinstance(step, Note) else _message(picture, step, y, centres)
    picture.height = int(y) + 12
    lives = [
        f'<line class="life" x1="{centre}" x2="{centre}" y1="{TOP + HEAD}" y2="{picture.height - 10}"/>'
        for centre in centres
    ]
    heads = Picture(0, 0, "")
    for centre, (kind, name, second) in zip(centres, participants, strict=True):
        heads.box(kind, centre - gap / 2 + 8, TOP, gap - 16, HEAD)
        heads.text("t", centre, TOP + (20 if second else 29), name, room=gap - 18, anchor="middle")
        heads.text("s", centre, TOP + 38, second, room=gap - 18, anchor="middle")
    picture.parts = [*lives, *picture.parts, *heads.parts]
    return picture.svg()


def _message(picture: Picture, step: Message, y: float, centres: Sequence[float]) -> float:
    kind = "loud" if step.loud else "d" if step.answer else "a"
    start, end = centres[step.source], centres[step.target]
    if step.source == step.target:
        _lines(picture, step.lines, start + 30, y + 13, "start", picture.width - start - 40)
        height = max(LINE_HEIGHT * len(step.lines), 22)
        picture.arrow((start, y + 4), (start + 20, y + 4), (start + 20, y + height), (start + 2, y + height), kind=kind)
        return y + height + 20
    middle = (start + end) / 2
    _lines(picture, step.lines, middle, y + 11, "middle", 2 * min(middle, picture.width - middle) - 16)
    y += LINE_HEIGHT * len(step.lines) + 4
    edge = 3 if end > start else -3
    picture.arrow((start + edge, y), (end - edge, y), kind=kind)
    return y + 18


def _lines(picture: Picture, lines: Sequence[str], x: float, y: float, anchor: str, room: float) -> None:
    """Text with the paper behind it, so that lifelines do not cross it."""
    width = max(len(line) for line in lines) * WIDTHS["m"]
    left = x - width / 2 if anchor == "middle" else x - 3
    height = LINE_HEIGHT * len(lines)
    picture.parts.append(f'<rect class="paper" x="{left}" y="{y - 13}" width="{width}" height="{height}"/>')
    for number, line in enumerate(lines):
        picture.text("m", x, y + LINE_HEIGHT * number, line, room=room, anchor=anchor)


def _note(picture: Picture, step: Note, y: float, centres: Sequence[float], gap: int) -> float:
    left, right = centres[step.first] - gap / 2 + 12, centres[step.last] + gap / 2 - 12
    height = LINE_HEIGHT * len(step.lines) + 14
    picture.box("note", left, y, right - left, height)
    for number, line in enumerate(step.lines):
        picture.text(
            "m", (left + right) / 2, y + 20 + LINE_HEIGHT * number, line, room=right - left - 10, anchor="middle"
        )
    return y + height + 18


def architecture() -> str:
    it = Picture(1120, 690, "From a GpuShare to MPS daemons on the nodes, whose clients reach one read-only socket")
    it.box("zone", 14, 14, 334, 662)
    it.text("t", 30, 40, "Kubernetes API and control plane")
    it.box("zone", 368, 14, 738, 662)
    it.text("t", 384, 40, "A GPU node")

    it.card("object", 34, 62, 126, 62, "GpuShare", "what you want")
    it.card("ours", 196, 62, 132, 62, "operator", "plans the fleet")
    it.card(
        "object",
        34,
        196,
        294,
        80,
        "GpuNode",
        "spec: which GPU belongs to which share",
        "status: GPUs, daemons, findings",
    )
    it.card("object", 34, 330, 294, 62, "DaemonSet of each share", "its MPS pods, replaced when idle")
    it.card("other", 34, 538, 126, 80, "your Pod", "asks for a slot", "or has a claim")
    it.card("ours", 196, 538, 132, 80, "webhook", "checks the pod,", "adds its limits")
    it.label(34, 644, "The pod needs no hostPath, no hostIPC and no", "privileges. Scheduler and kubelet count slots.")
    it.arrow((160, 93), (194, 93))
    it.arrow((262, 124), (262, 194))
    it.label(254, 164, "assigns GPUs", anchor="end")
    it.arrow((226, 124), (226, 144), (24, 144), (24, 361), (32, 361))
    it.arrow((160, 578), (194, 578))

    it.card(
        "ours",
        388,
        62,
        266,
        116,
        "node agent",
        "reads NVML, the kubelet and the API",
        "offers slots of ready GPUs only",
        "compares use with grants",
        "ends clients before the kubelet kills",
    )
    it.card(
        "other",
        838,
        62,
        250,
        116,
        "kubelet, container runtime",
        "Without the GPU's CDI spec the",
        "runtime starts no container on it,",
        "and the kubelet tries again:",
        "the spec is the gate.",
    )
    it.arrow((654, 100), (836, 100))
    it.label(744, 92, "device plugin: slots", anchor="middle")
    it.arrow((654, 146), (836, 146))
    it.label(744, 138, "CDI spec of a ready GPU", anchor="middle")
    it.arrow((328, 222), (358, 222), (358, 106), (386, 106))
    it.arrow((388, 156), (372, 156), (372, 252), (330, 252))

    it.card("files", 388, 266, 320, 158, "/run/gpushare/<GPU UUID>/")
    rows = (
        ("daemon.json", "desired limits"),
        ("state.json", "state, limits read back"),
        ("pipe/", "the MPS daemon's sockets"),
        ("log/", "what daemon and server print"),
        ("attach/control", "the attach broker's socket"),
    )
    for number, (name, meaning) in enumerate(rows):
        it.text("m", 402, 316 + 22 * number, name, room=110)
        it.text("s", 510, 316 + 22 * number, meaning, room=195)
    it.arrow((420, 178), (420, 264))
    it.label(428, 226, "writes")
    it.arrow((500, 264), (500, 180))
    it.label(508, 226, "reads")
    it.arrow((588, 178), (588, 264), kind="loud")
    it.label(596, 219, "terminate_client,", "through pipe/")

    it.card("ours", 818, 232, 270, 256, "MPS pod")
    it.card("other", 836, 268, 234, 54, "supervisor", "writes limits, reads them back")
    it.card("other", 836, 344, 234, 54, "MPS daemon, one per GPU", "nvidia-cuda-mps-control -f")
    it.card("other", 836, 420, 234, 54, "MPS server", "holds the clients' contexts")
    it.arrow((953, 322), (953, 342))
    it.arrow((953, 398), (953, 418))
    it.arrow((708, 286), (834, 286))
    it.label(772, 279, "daemon.json", anchor="middle")
    it.arrow((836, 312), (710, 312))
    it.label(772, 305, "state.json", anchor="middle")
    it.arrow((836, 362), (710, 362))
    it.label(772, 355, "pipe/, log/", anchor="middle")

    it.card("other", 388, 538, 150, 98, "client", "25 % threads, 16 GiB", "sees one GPU and", "client/ alone")
    it.card("other", 558, 538, 150, 98, "client", "10 % threads, 8 GiB", "its own user,", "its own pod")
    it.arrow((452, 538), (452, 426))
    it.arrow((632, 538), (632, 426))
    it.label(542, 480, "client/ is mounted", "read-only", anchor="middle")
    it.arrow((328, 578), (386, 578))
    it.arrow((708, 588), (816, 588))
    it.label(762, 580, "kernels", anchor="middle")
    it.card(
        "gpu",
        818,
        538,
        270,
        116,
        "GPU",
        "EXCLUSIVE_PROCESS: its MPS server",
        "alone may open it. Each GPU has a",
        "daemon of its own, so that a fault",
        "stays on one GPU.",
    )
    it.arrow((953, 474), (953, 536))
    return it.svg()


def allocate() -> str:
    api, kubelet, agent, runtime, daemon, client = range(6)
    participants = [
        ("object", "API server", "webhook, scheduler"),
        ("other", "kubelet", "device manager"),
        ("ours", "node agent", "device plugin"),
        ("other", "container runtime", "CDI"),
        ("ours", "MPS daemon", "and its server"),
        ("other", "client", "your container"),
    ]
    steps: list[Message | Note] = [
        note(agent, daemon, "The GPU is ready: limits written and read back,", "CDI spec written, its slots offered"),
        call(
            api,
            api,
            "Your pod asks for one slot: the webhook checks it and adds",
            "its limits, or refuses it with a sentence",
        ),
        call(api, kubelet, "the scheduler", "binds the pod"),
        call(kubelet, agent, "GetPreferredAllocation"),
        answer(agent, kubelet, "IDs of one GPU"),
        call(kubelet, agent, "Allocate(device ID)"),
        call(
            agent, agent, "records a pending allocation, and answers", "at once: a waiting Allocate stalls the kubelet"
        ),
        answer(agent, kubelet, "CDI device gpushare.dev/gpu=UUID,", "the share's default limits"),
        call(kubelet, agent, "PreStartContainer"),
        call(agent, agent, "waits up to 20 s until the GPU is ready", "and fewer than perGpu containers started"),
        answer(agent, kubelet, "may start; else tried again"),
        call(kubelet, runtime, "create the container with the CDI device"),
        key(runtime, runtime, "No CDI spec, no start: the gate. It also", "holds while the agent is down"),
        call(runtime, client, "starts it with the GPU's device node, attach/ read-only, and its limits"),
        call(client, daemon, "attaches through the broker at", "attach/control"),
        answer(daemon, client, "context within", "its limits"),
    ]
    return sequence("How a container gets a slot", participants, 160, steps)


def departure() -> str:
    api, kubelet, agent, daemon, client, neighbour = range(6)
    participants = [
        ("object", "API server", ""),
        ("other", "kubelet", ""),
        ("ours", "node agent", ""),
        ("ours", "MPS daemon", ""),
        ("other", "client", "in mid-kernel"),
        ("other", "neighbour", "on the same GPU"),
    ]
    steps: list[Message | Note] = [
        call(api, api, "kubectl delete pod: the pod gets a deletion timestamp"),
        call(api, agent, "watch event, within milliseconds"),
        call(api, kubelet, "watch event"),
        call(kubelet, client, "preStop hook: sleeps 1 or 2 s, added by the webhook"),
        call(
            agent,
            agent,
            "finds the container's processes among the GPU's",
            "clients, and asks /proc which catch SIGTERM",
        ),
        note(
            agent,
            client,
            "A client that does not catch SIGTERM: at once.",
            "One that does: 2 s before the grace period ends.",
        ),
        call(
            agent,
            agent,
            "writes endings.json first: a second terminate_client",
            "for one process would hang the daemon",
        ),
        key(agent, daemon, "terminate_client"),
        key(daemon, client, "ends its contexts"),
        call(client, client, "error 810 from the", "next CUDA call"),
        call(agent, api, "event ClientTerminated: which process, and why"),
        call(kubelet, client, "SIGTERM after the preStop hook, SIGKILL after the grace period"),
        note(
            client,
            neighbour,
            "Nothing of the client runs on the GPU:",
            "the neighbour goes on. Without this,",
            "it would end with error 700.",
        ),
    ]
    return sequence("How a departing client leaves its neighbours unharmed", participants, 160, steps)


def limits() -> str:
    api, operator, agent, supervisor, daemon, clients = range(6)
    participants = [
        ("object", "API server", "and webhook"),
        ("ours", "operator", ""),
        ("ours", "node agent", ""),
        ("ours", "supervisor", "in the MPS pod"),
        ("ours", "MPS daemon", "and its server"),
        ("other", "clients", ""),
    ]
    steps: list[Message | Note] = [
        call(
            api,
            api,
            "kubectl edit gpushare: threads.max from 50 to 40. The webhook",
            "refuses what cannot hold, and names the field",
        ),
        call(api, agent, "watch event: the GpuShare"),
        call(agent, supervisor, "writes daemon.json"),
        key(
            agent,
            agent,
            "next turn, at most 1 s later: closes the gate, so no",
            "container starts, while the limits read back differ",
        ),
        call(supervisor, daemon, "sets the default", "limits, then the", "server's"),
        call(supervisor, daemon, "asks for both"),
        answer(daemon, supervisor, "limits in force"),
        answer(supervisor, agent, "writes state.json with", "what was read back"),
        call(agent, agent, "equal to those desired: opens the gate"),
        call(agent, api, "GpuNode.status: limits in force"),
        call(api, operator, "watch event"),
        call(operator, api, "LimitsEnforced", "is True"),
        note(
            daemon,
            clients,
            "Running clients keep what they",
            "have. New clients get the new",
            "limits. Nothing was restarted.",
        ),
    ]
    return sequence("How a change of limits reaches a live MPS daemon", participants, 160, steps)


NEIGHBOURS = (
    ("training", "beside GPT-2 training"),
    ("matmuls", "beside large matrix products"),
    ("bandwidth", "beside passes over memory"),
)
WAYS = (
    ("MPS plain", "note", "MPS without caps"),
    ("cap 50", "other", "capped at 50 %"),
    ("gives way", "ours", "best effort, on all SMs"),
    ("gives way, green 50", "ours", "best effort, 50 % of the SMs while needed"),
)
"""(way of the measurement, kind of bar, what it is called)."""


def latency() -> str:
    """Bars from the p99 alone, on a logarithmic scale, to the least and to the most of the hosts."""
    runs = json.loads(LATENCIES.read_text())["runs"]
    left, decade, row = 330, 145, 24
    picture = Picture(
        960, 464, "The p99 of a service beside batch work, in times of that alone, by way of sharing the GPU"
    )
    picture.text("t", 20, 30, "p99 of a service beside batch work, in times of that alone")
    picture.text(
        "s",
        20,
        50,
        f"BERT-base at 40 % of what it serves alone, {len(runs)} H200 hosts, one run each: least to most, logarithmic",
    )
    for power in range(4):
        x = left + decade * power
        picture.parts.append(f'<line class="life" x1="{x}" x2="{x}" y1="70" y2="434"/>')
        picture.label(x, 452, f"{10**power:,}", anchor="middle")
    y = 82
    for neighbour, about in NEIGHBOURS:
        picture.text("m", 20, y + 4, about)
        for way, kind, name in WAYS:
            y += row
            times = sorted(_times_alone(run, neighbour, way) for run in runs)
            picture.label(left - 10, y + 5, name, anchor="end")
            for most, height in ((times[-1], 6), (times[0], 14)):
                picture.box(kind, left, y - height / 2, round(decade * math.log10(most), 1), height)
            picture.label(
                left + decade * math.log10(times[-1]) + 8, y + 5, f"{_short(times[0])} to {_short(times[-1])}"
            )
        y += row + 4
    return picture.svg()


def _times_alone(run: dict[str, Any], neighbour: str, way: str) -> float:
    """The cell of a steady load; bursts have cells of their own."""
    (cell,) = (
        cell
        for cell in run["cells"]["cells"]
        if (cell["neighbour"], cell["way"]) == (neighbour, way) and "bursts" not in cell
    )
    return float(cell["p99_times_alone"])


def _short(times: float) -> str:
    return f"{times:,.0f}" if times >= 100 else f"{times:.1f}"


PICTURES = {
    "architecture": architecture,
    "allocate": allocate,
    "departure": departure,
    "change-of-limits": limits,
    "latency": latency,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw())
