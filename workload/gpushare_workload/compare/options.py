"""The command line of `compare`, and what it asks for."""

import argparse
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from gpushare.trial.cases import BARE, TrialMode, TrialPlan
from gpushare.trial.printed import FigureReader, PrintedFigures

LONGEST_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Seconds. `window` None: each run goes on until the program ends by itself. `start`: until its first figure."""

    warmup: float
    window: float | None
    windows: int
    start: float


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What one comparison is about. `programs`: one command, or a pair. `cap`: percent of the SMs; None: 100/N."""

    programs: tuple[tuple[str, ...], ...]
    plan: TrialPlan
    printed: PrintedFigures
    times: RunTimes
    cap: float | None
    share: str
    json: Path | None
    picture: Path | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="+", metavar="COMMAND", help="the program and its arguments, after --")
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--copies", nargs="+", type=int, metavar="N", help="numbers of copies beside one alone (default: 2 4 8)"
    )
    what.add_argument("--beside", metavar="COMMAND", help="a second program, in quotes: measures the pair, not copies")
    what.add_argument(
        "--modes",
        nargs="+",
        choices=[mode.value for mode in BARE],
        default=[mode.value for mode in BARE],
        metavar="MODE",
        help=f"{', '.join(BARE)}; default: all",
    )
    what.add_argument(
        "--threads", type=float, metavar="PERCENT", help="of the SMs for each copy in mps-capped (default: 100/N)"
    )
    what.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each case (default: %(default)s)")
    what.add_argument("--seed", type=int, default=1, help="determines the order of the repeats (default: %(default)s)")
    rate = parser.add_argument_group("the rate (default: one run per wall time)")
    rate.add_argument("--rate-regex", metavar="RE", help="finds a rate per second in a line of standard output")
    rate.add_argument("--rate-json", metavar="FIELD", help="the field with the rate, in lines that are JSON objects")
    rate.add_argument(
        "--counts", action="store_true", help="what is found is work done since the line before: it is summed"
    )
    rate.add_argument("--latency-regex", metavar="RE", help="finds a latency in ms in a line of standard output")
    rate.add_argument("--latency-json", metavar="FIELD", help="the field with a latency in ms, or a list of them")
    times = parser.add_argument_group("the time")
    times.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="measure a window of this length once every copy prints figures, then end the copies; "
        "default: let them run to their end",
    )
    times.add_argument(
        "--windows", type=int, default=1, metavar="N", help="windows of each run, one after the other (%(default)s)"
    )
    times.add_argument(
        "--warmup", type=float, default=1.0, metavar="S", help="with --seconds: time before the window (%(default)s)"
    )
    times.add_argument(
        "--start-timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="the longest time to the first figure, or of a run without --seconds (%(default)s)",
    )
    results = parser.add_argument_group("results")
    results.add_argument("--json", type=Path, metavar="FILE", help="write all figures, with their environment")
    results.add_argument(
        "--png", type=Path, metavar="FILE", help="draw the gain and the latency (needs gpushare[report])"
    )
    results.add_argument("--share-name", default="trial", metavar="NAME", help="of the GpuShare to apply (%(default)s)")


def request_of(arguments: argparse.Namespace) -> CompareRequest:
    """Raises ValueError naming the option that is out of bounds, with its value."""
    programs = [tuple(arguments.program)]
    if arguments.beside is not None:
        if arguments.copies:
            raise ValueError("--copies: is for copies of one program; a pair (--beside) is one of each")
        programs.append(_words(arguments.beside))
    modes = [TrialMode(name) for name in dict.fromkeys(arguments.modes)]
    cap = arguments.threads
    if cap is not None and not 1 <= cap <= 100:
        raise ValueError(f"--threads {cap:g}: a percentage from 1 to 100")
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?", arguments.share_name):
        raise ValueError(f"--share-name {arguments.share_name!r}: at most 50 of a-z, 0-9 and -, as Kubernetes' names")
    printed = PrintedFigures(
        FigureReader.of("--rate", arguments.rate_regex, arguments.rate_json),
        arguments.counts,
        FigureReader.of("--latency", arguments.latency_regex, arguments.latency_json),
    )
    return CompareRequest(
        programs=tuple(programs),
        plan=TrialPlan.of(modes, arguments.copies or (2, 4, 8), len(programs), arguments.repeats, arguments.seed),
        printed=printed,
        times=_times(arguments, printed),
        cap=cap,
        share=arguments.share_name,
        json=arguments.json,
        picture=arguments.png,
    )


def _words(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"--beside {text!r}: {error}") from None
    if not words:
        raise ValueError("--beside: name a program")
    return words


def _times(arguments: argparse.Namespace, printed: PrintedFigures) -> RunTimes:
    window, windows = arguments.seconds, arguments.windows
    for option, value in (("--seconds", window), ("--start-timeout", arguments.start_timeout)):
        if value is not None and not 0 < value <= LONGEST_SECONDS:
            raise ValueError(f"{option} {value:g}: above 0, up to {LONGEST_SECONDS:g} seconds")
    if not 0 <= arguments.warmup <= LONGEST_SECONDS:
        raise ValueError(f"--warmup {arguments.warmup:g}: 0 to {LONGEST_SECONDS:g} seconds")
    if window is not None and printed.rate is None:
        raise ValueError("--seconds: ends the program before its own end, so it must print its rate: "
                         "give --rate-regex or --rate-json")  # fmt: skip
    if not 1 <= windows <= 100:
        raise ValueError(f"--windows {windows}: 1 to 100")
    if windows > 1 and window is None:
        raise ValueError(f"--windows {windows}: needs --seconds, the length of a window")
    return RunTimes(arguments.warmup, window, windows, arguments.start_timeout)
