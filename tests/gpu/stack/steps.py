"""A command of several steps. Exit code 0: all went as it should, 1: not, 2: misuse."""

import argparse
import sys
from collections.abc import Callable, Sequence

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
