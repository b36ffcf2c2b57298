"""The command line of `compare`, and what it asks for."""

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path

from gpushare.kubectl.rules.trial.apply import check_share_name
from gpushare.kubectl.rules.trial.cases import BARE, TrialMode, TrialPlan
from gpushare.kubectl.rules.trial.options import (
    RunTimes,
    add_figures,
    add_plan,
    add_protect,
    add_times,
    figures_of,
    plan_of,
    terms_of,
    times_of,
)
from gpushare.kubectl.rules.trial.printed import PrintedFigures


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What one comparison is about. `programs`: one command, or several.

    `cap`: percent of the SMs for each copy; None: 100/N. `share`: the name of the GpuShare to apply.
    """

    programs: tuple[tuple[str, ...], ...]
    plan: TrialPlan
    printed: PrintedFigures
    times: RunTimes
    cap: float | None
    share: str = "trial"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="*", metavar="COMMAND", help="the program and its arguments, after --")
    what = parser.add_argument_group("what to run")
    add_plan(what)
    what.add_argument(
        "--beside", metavar="COMMAND", action="append", default=[],
        help="another program, in quotes: one copy of each beside each other, in place of copies of one; may be given "
        "several times",
    )  # fmt: skip
    add_protect(what, "COMMAND", "COMMAND")
    what.add_argument(
        "--modes",
        nargs="+",
        choices=[mode.value for mode in BARE],
        metavar="MODE",
        help=f"{', '.join(BARE)}; default: all",
    )
    what.add_argument(
        "--threads", type=float, metavar="PERCENT", help="of the SMs for each copy in mps-capped (default: 100/N)"
    )
    add_figures(parser, "standard output")
    add_times(parser.add_argument_group("the time"), 300.0)
    results = parser.add_argument_group("results")
    results.add_argument(
        "--read", type=Path, metavar="FILE", help="run nothing: judge and draw an earlier comparison from its JSON file"
    )
    results.add_argument("--json", type=Path, metavar="FILE", help="write all figures, with their environment")
    results.add_argument(
        "--png", type=Path, metavar="FILE", help="draw the gain and the latency (needs gpushare[report])"
    )
    results.add_argument("--share-name", default="trial", metavar="NAME", help="of the GpuShare to apply (%(default)s)")


def request_of(arguments: argparse.Namespace) -> CompareRequest:
    """Raises ValueError naming the option that is out of bounds, with its value."""
    protect, cap = terms_of(arguments, bool(arguments.program)), arguments.threads
    if protect is not None:
        for option, value in (("--modes", arguments.modes), ("--threads", cap)):
            if value is not None:
                raise ValueError(f"{option}: --protect runs the job under MPS, and searches its percentage")
        programs, modes = [_words("--protect", arguments.protect)], [TrialMode.MPS]
    elif arguments.program:
        programs, modes = (
            [tuple(arguments.program)],
            [TrialMode(name) for name in dict.fromkeys(arguments.modes or BARE)],
        )
    else:
        raise ValueError("COMMAND: name the program to compare, after --, or a service by --protect")
    plan = plan_of(arguments, modes, 1 + len(arguments.beside), protect)
    programs += [_words("--beside", text) for text in arguments.beside]
    if cap is not None and not 1 <= cap <= 100:
        raise ValueError(f"--threads {cap:g}: a percentage from 1 to 100")
    check_share_name("--share-name", arguments.share_name)
    printed = figures_of(arguments)
    return CompareRequest(
        programs=tuple(programs),
        plan=plan,
        printed=printed,
        times=times_of(arguments, printed),
        cap=cap,
        share=arguments.share_name,
    )


def _words(option: str, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{option} {text!r}: {error}") from None
    if not words:
        raise ValueError(f"{option}: name a program")
    return words
