"""A command of several steps, and time limits. Exit code 0: all went as it should, 1: not, 2: misuse."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from localcluster.errors import LocalClusterError

Step = Callable[[argparse.Namespace], bool]


class Steps:
    def __init__(self, program: str, description: str) -> None:
        form = argparse.RawDescriptionHelpFormatter
        self._parser = argparse.ArgumentParser(prog=program, description=description, formatter_class=form)
        self._steps = self._parser.add_subparsers(required=True, metavar="STEP")

    def add(self, name: str, run: Step, text: str) -> argparse.ArgumentParser:
        """The step's own parser. `run` gets its arguments, and returns whether it went well."""
        step = self._steps.add_parser(name, help=text, description=text)
        step.set_defaults(run=run)
        return step

    def run(self, argv: Sequence[str]) -> int:
        arguments = self._parser.parse_args(argv)
        try:
            return int(not arguments.run(arguments))
        except LocalClusterError as error:
            print(error, file=sys.stderr)
            return 1


class TookTooLongError(LocalClusterError):
    """What was done exceeded its time limit."""


@contextmanager
def time_limit(name: str, seconds: float, again_seconds: float = 0) -> Iterator[None]:
    """Raises TookTooLongError after `seconds`, in the main thread, whatever it waits for.

    `again_seconds`: raises it again and again after so many, for clean-ups that hang; 0: only once. Limits do not nest.
    """

    def late(_: int, __: FrameType | None) -> None:
        raise TookTooLongError(f"{name} took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, again_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
