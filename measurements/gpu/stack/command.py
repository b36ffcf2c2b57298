"""The steps by name, each with a time limit."""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measurements.gpu.stack import bring, payload, suite
from measurements.gpu.stack.place import RESULTS, SIMULATED_RESULTS
from measurements.gpu.stack.steps import Steps, time_limit
from measurements.gpu.stack.suites import ANY, SUITES, measure_of

PACK_SECONDS, UNPACK_SECONDS, UP_SECONDS, DOWN_SECONDS = 1800, 120, 300, 300


def main(argv: Sequence[str], description: str) -> int:
    return _steps(description).run(argv)


def _steps(description: str) -> Steps:
    steps = Steps("measurements/gpu/run", description)
    steps.add("pack", _pack, "compress what has to travel into parts").add_argument("out", type=Path)
    steps.add("unpack", _unpack, "take parts in; with the last one, unpack").add_argument("part", type=Path, nargs="+")
    up = steps.add("up", _up, "start the cluster, make the clients' image, install gpushare")
    suite = steps.add("suite", _suite, "run suites")
    suite.add_argument("name", nargs="+", choices=SUITES, metavar=f"NAME ({', '.join(SUITES)})")
    suite.add_argument(
        "--seconds", type=float, help="for each, if less than its own limit: what it has by then is written"
    )
    suite.add_argument(
        "--part", type=_part, default=(1, 1), metavar="K/N", help="of a suite that N stacks share: control"
    )
    suite.add_argument("--also", type=Path, nargs="+", default=[], help="results of the other stacks, to add to these")
    down = steps.add("down", _down, "save the logs, end everything, say what is left")
    drawn = steps.add("picture", _picture, "draw what departures, throughput and faults measured")
    drawn.add_argument("--out", type=Path, help=f"where the results are (default: {RESULTS})")
    everything = steps.add("all", _all, "up, the suites that are not yet as expected, and down whatever happened")
    for step in (up, everything):
        step.add_argument(
            "--simulated",
            type=int,
            nargs="?",
            const=1,
            default=0,
            metavar="GPUS",
            help="rehearse it with simulated GPUs",
        )
    for step in (suite, down, everything):
        step.add_argument("--out", type=Path, help=f"for results and logs (default: {RESULTS}, or build/ if simulated)")
    return steps


@contextmanager
def _step(name: str, seconds: float) -> Iterator[None]:
    """Prints the duration. Raises TookTooLongError after `seconds`."""
    began = time.monotonic()
    try:
        with time_limit(name, seconds):
            yield
    finally:
        print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)


def _pack(arguments: argparse.Namespace) -> bool:
    with _step("pack", PACK_SECONDS):
        print(json.dumps(payload.pack(arguments.out), indent=2))
    return True


def _unpack(arguments: argparse.Namespace) -> bool:
    with _step("unpack", UNPACK_SECONDS):
        missing = payload.unpack(arguments.part)
    print(f"not there yet: {', '.join(missing)}" if missing else "all parts are unpacked")
    return True


def _up(arguments: argparse.Namespace) -> bool:
    with _step("up", UP_SECONDS):
        bring.up(arguments.simulated)
    return True


def _suite(arguments: argparse.Namespace) -> bool:
    out = arguments.out or _results(bring.running()[1].simulated)
    run = partial(_run_suite, at_most=arguments.seconds or math.inf, part=arguments.part, also=arguments.also)
    return _run_suites(arguments.name, partial(run, out=out))


def _part(text: str) -> tuple[int, int]:
    """ValueError: it is no part."""
    part, parts = (int(number) for number in text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def _run_suites(names: Sequence[str], run: Callable[[str], bool]) -> bool:
    """Runs each suite, even if one before it failed."""
    ended = [run(name) for name in names]
    return all(ended)


def _run_suite(
    name: str, out: Path, at_most: float = math.inf, part: tuple[int, int] = (1, 1), also: Sequence[Path] = ()
) -> bool:
    _, limit, _ = SUITES[name]
    seconds = min(limit, at_most)
    with _step(f"suite {name}", seconds):
        as_expected = suite.run(name, measure_of(name), out, seconds, part, list(also))
    print(f"{name}: {'as expected' if as_expected else 'NOT as expected'}", flush=True)
    return as_expected


def _down(arguments: argparse.Namespace) -> bool:
    simulated = bring.RECORD.exists() and bring.running()[1].simulated
    return _take_down(arguments.out or _results(simulated))


def _take_down(out: Path) -> bool:
    with _step("down", DOWN_SECONDS):
        left = bring.down(out / "logs")
    print(f"still there: {', '.join(left)}" if left else "nothing is left but what was unpacked", flush=True)
    return not left


def _picture(arguments: argparse.Namespace) -> bool:
    # Not needed where the suites run, and not there: matplotlib is an extra.
    from measurements.gpu.stack import picture

    results = arguments.out or RESULTS
    picture.draw(results, results / "pictures" / "stack.png")
    return True


def _all(arguments: argparse.Namespace) -> bool:
    out = arguments.out or _results(bool(arguments.simulated))
    went_well = False
    try:
        _up(arguments)
        todo = [name for name in _of_this_machine() if not _is_done(out, name, bool(arguments.simulated))]
        went_well = _run_suites(todo, partial(_run_suite, out=out))
    finally:
        went_well = _take_down(out) and went_well
    return went_well


def _of_this_machine() -> list[str]:
    """The suites for this number of GPUs."""
    gpus = bring.running()[1].truth["gpus"]
    return [name for name, (_, _, wanted) in SUITES.items() if wanted in (ANY, gpus)]


def _is_done(out: Path, name: str, simulated: bool) -> bool:
    """Tells whether an earlier, interrupted `all` with the same code has run the suite, by the record of the stack."""
    path = out / f"stack-{name}.json"
    if not path.exists():
        return False
    result = json.loads(path.read_text())
    image = bring.running()[0].workload_image
    done = (
        result["as_expected"] and result["simulated"] is simulated and result["environment"]["workload_image"] == image
    )
    if done:
        print(f"{name}: was as expected before")
    return bool(done)


def _results(simulated: bool) -> Path:
    return SIMULATED_RESULTS if simulated else RESULTS
