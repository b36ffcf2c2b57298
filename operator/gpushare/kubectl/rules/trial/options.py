"""The options that `compare` and `trial` have in common, and what they ask for."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpushare.kubectl.rules.trial.cases import MOST_PROGRAMS, TrialMode, TrialPlan
from gpushare.kubectl.rules.trial.printed import FigureReader, PrintedFigures
from gpushare.kubectl.rules.trial.protect import RATE_VARIABLE, AskedRate, ProtectTerms, Slo

LONGEST_SECONDS = 86400.0
MOST_WINDOWS = 100
DEFAULT_COPIES = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Seconds. `window` None: each run goes on until the program ends by itself. `start`: until its first figure.

    `windows`: of each run, one after the other.
    """

    warmup: float
    window: float | None
    start: float
    windows: int = 1

    @property
    def measured(self) -> float:
        """Seconds of all windows; 0 if runs go on to their end."""
        return self.windows * (self.window or 0.0)


def add_plan(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """How many copies, and how often."""
    parser.add_argument(
        "--copies",
        nargs="+",
        type=int,
        metavar="N",
        help=f"numbers of copies beside one alone (default: {' '.join(map(str, DEFAULT_COPIES))})",
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each case (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="determines the order of the repeats (default: %(default)s)"
    )


def add_protect(parser: "argparse.ArgumentParser | argparse._ArgumentGroup", program: str, instead: str) -> None:
    """`program`: what --protect takes; `instead`: of which option."""
    parser.add_argument(
        "--protect",
        metavar=program,
        help=f"in place of {instead}: a service; finds the class and the most of the GPU with which the one --beside "
        "may run so that --slo holds",
    )
    parser.add_argument(
        "--slo", metavar="P=TIME", help="with --protect: a percentile, p50 or p99, of its latency, such as p99=20ms"
    )
    parser.add_argument(
        "--rate",
        metavar="R",
        help=f"with --protect: requests per second that ${RATE_VARIABLE} asks for, or such as 40%% of what the service "
        "does without that variable (default: its own rate)",
    )


def terms_of(arguments: argparse.Namespace, given: bool) -> ProtectTerms | None:
    """None without --protect. `given`: another program is named in its place too. Raises ValueError naming the option
    that is out of bounds.
    """
    if arguments.protect is None:
        for option, value in (("--slo", arguments.slo), ("--rate", arguments.rate)):
            if value is not None:
                raise ValueError(f"{option} {value}: is of a service: name it by --protect")
        return None
    if given:
        raise ValueError("--protect: takes the place of the program that is compared: leave that out")
    if arguments.slo is None:
        raise ValueError("--protect: say what is to hold, by --slo, such as p99=20ms")
    if len(arguments.beside) != 1:
        raise ValueError("--protect: name the one job that is to run beside it, by --beside")
    if arguments.seconds is None or not (arguments.latency_json or arguments.latency_regex):
        raise ValueError("--protect: needs --seconds, and --latency-json or --latency-regex")
    rate = None if arguments.rate is None else AskedRate.parse(arguments.rate)
    return ProtectTerms(Slo.parse(arguments.slo), rate, arguments.seconds)


def add_figures(parser: argparse.ArgumentParser, output: str) -> None:
    """`output`: where the program prints them, such as `standard output`."""
    rate = parser.add_argument_group("the rate (default: one run per wall time)")
    rate.add_argument("--rate-regex", metavar="RE", help=f"finds a rate per second in a line of {output}")
    rate.add_argument("--rate-json", metavar="FIELD", help="the field with the rate, in lines that are JSON objects")
    rate.add_argument(
        "--counts", action="store_true", help="what is found is work done since the line before: it is summed"
    )
    rate.add_argument("--latency-regex", metavar="RE", help=f"finds a latency in ms in a line of {output}")
    rate.add_argument("--latency-json", metavar="FIELD", help="the field with a latency in ms, or a list of them")


def add_times(parser: "argparse.ArgumentParser | argparse._ArgumentGroup", start: float) -> None:
    """`start`: the default of the longest time to the first figure."""
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="measure windows of this length once every copy prints figures, then end the copies; "
        "default: let them run to their end",
    )
    parser.add_argument(
        "--windows",
        type=int,
        default=1,
        metavar="N",
        help="with --seconds: windows of a run, one after the other (%(default)s)",
    )
    parser.add_argument(
        "--warmup",
        type=float,
        default=1.0,
        metavar="S",
        help="with --seconds: time before the first window (%(default)s)",
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=start,
        metavar="S",
        help="the longest time to the first figure, or of a run without --seconds (%(default)s)",
    )


def plan_of(
    arguments: argparse.Namespace, modes: Sequence[TrialMode], programs: int, protect: ProtectTerms | None = None
) -> TrialPlan:
    """`programs`: one, and those that `--beside` names. Raises ValueError naming the option that is out of bounds, with
    its value.
    """
    if programs > MOST_PROGRAMS:
        raise ValueError(f"--beside: given {programs - 1} times: at most {MOST_PROGRAMS - 1} times")
    if programs > 1 and arguments.copies:
        given = " ".join(map(str, arguments.copies))
        raise ValueError(
            f"--copies {given}: is for copies of one program, and --beside measures one copy of each: leave one of the "
            "two options out"
        )
    if programs > 1 and arguments.seconds is None and (arguments.rate_regex or arguments.rate_json):
        raise ValueError(
            "--beside: give --seconds too: programs that run to their end do not end together, and the last to end "
            "would print the rate that it has alone"
        )
    copies = arguments.copies or DEFAULT_COPIES
    return replace(TrialPlan.of(modes, copies, programs, arguments.repeats, arguments.seed), protect=protect)


def figures_of(arguments: argparse.Namespace) -> PrintedFigures:
    """Raises ValueError naming the option that cannot be used, with its value."""
    return PrintedFigures(
        FigureReader.of("--rate", arguments.rate_regex, arguments.rate_json),
        arguments.counts,
        FigureReader.of("--latency", arguments.latency_regex, arguments.latency_json),
    )


def times_of(arguments: argparse.Namespace, printed: PrintedFigures) -> RunTimes:
    """Raises ValueError naming the option that is out of bounds, with its value."""
    for option, value in (("--seconds", arguments.seconds), ("--start-timeout", arguments.start_timeout)):
        if value is not None and not 0 < value <= LONGEST_SECONDS:
            raise ValueError(f"{option} {value:g}: above 0, up to {LONGEST_SECONDS:g} seconds")
    if not 0 <= arguments.warmup <= LONGEST_SECONDS:
        raise ValueError(f"--warmup {arguments.warmup:g}: 0 to {LONGEST_SECONDS:g} seconds")
    if arguments.seconds is not None and printed.rate is None:
        raise ValueError(
            f"--seconds {arguments.seconds:g}: ends the program before its own end, so it must print its rate: give "
            "--rate-regex or --rate-json"
        )
    if not 1 <= arguments.windows <= MOST_WINDOWS:
        raise ValueError(f"--windows {arguments.windows}: 1 to {MOST_WINDOWS}")
    if arguments.windows > 1 and arguments.seconds is None:
        raise ValueError(f"--windows {arguments.windows}: needs --seconds, the length of a window")
    return RunTimes(arguments.warmup, arguments.seconds, arguments.start_timeout, arguments.windows)
