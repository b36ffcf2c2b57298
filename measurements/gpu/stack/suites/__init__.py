"""The suites by name, in the order of `all`: (function, limit in seconds, number of GPUs; ANY)."""

from measurements.gpu.stack.suite import Suite
from measurements.gpu.stack.suites.accidents import changes, control, departures, faults
from measurements.gpu.stack.suites.limits import borrowing, claims, escapes, unprivileged, view
from measurements.gpu.stack.suites.several_gpus import pair, whole
from measurements.gpu.stack.suites.speed import costs, programs, ready, throughput

ANY = 0
SUITES: dict[str, tuple[Suite, int, int]] = {
    "view": (view.measure, 150, 1),
    "ready": (ready.measure, 500, ANY),
    "throughput": (throughput.measure, 420, 1),
    "departures": (departures.measure, 560, 1),
    "changes": (changes.measure, 300, 1),
    "escapes": (escapes.measure, 420, 1),
    "faults": (faults.measure, 480, 1),
    "claims": (claims.measure, 240, 1),
    "costs": (costs.measure, 240, 1),
    "unprivileged": (unprivileged.measure, 200, 1),
    "control": (control.measure, 1500, 1),
    "borrowing": (borrowing.measure, 200, 1),
    "programs": (programs.measure, 1500, 1),
    "pair": (pair.measure, 400, 2),
    "whole": (whole.measure, 300, 2),
}
