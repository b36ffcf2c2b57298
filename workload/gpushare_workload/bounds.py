"""Arguments that are numbers, checked where a scenario begins."""

import argparse


def at_least(arguments: argparse.Namespace, **least: float) -> None:
    """Raises ValueError naming the first option whose value is below its bound."""
    for name, bound in least.items():
        value = getattr(arguments, name)
        if not value >= bound:  # also for a value that is no number
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {bound}")
        if value == float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be finite")
