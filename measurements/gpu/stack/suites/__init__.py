"""The suites by name, in the order of `all`: (module in this folder, limit in seconds, number of GPUs; ANY)."""

from importlib import import_module

from measurements.gpu.stack.suite import Suite

ANY = 0
SUITES: dict[str, tuple[str, int, int]] = {
    "view": ("limits.view", 150, 1),
    "ready": ("speed.ready", 500, ANY),
    "throughput": ("speed.throughput", 420, 1),
    "departures": ("accidents.departures", 560, 1),
    "changes": ("accidents.changes", 300, 1),
    "escapes": ("limits.escapes", 420, 1),
    "identity": ("limits.identity", 400, 1),
    "faults": ("accidents.faults", 480, 1),
    "claims": ("limits.claims", 240, 1),
    "costs": ("speed.costs", 240, 1),
    "unprivileged": ("limits.unprivileged", 200, 1),
    "control": ("accidents.control", 1500, 1),
    "borrowing": ("limits.borrowing", 200, 1),
    "programs": ("speed.programs", 1500, 1),
    "pair": ("several_gpus.pair", 400, 2),
    "whole": ("several_gpus.whole", 300, 2),
}


def measure_of(name: str) -> Suite:
    """A suite's function. Only the suite that runs is imported: unpacking needs nothing but the standard library."""
    measure: Suite = import_module(f"{__name__}.{SUITES[name][0]}").measure
    return measure
