"""The suites by name in the order in which `all` runs them, and how long each may take in seconds."""

from tests.gpu.stack.suite import Suite
from tests.gpu.stack.suites import changes, costs, departures, escapes, faults, throughput, view

SUITES: dict[str, tuple[Suite, int]] = {
    "view": (view.measure, 150),
    "throughput": (throughput.measure, 420),
    "departures": (departures.measure, 560),
    "changes": (changes.measure, 300),
    "escapes": (escapes.measure, 420),
    "faults": (faults.measure, 480),
    "costs": (costs.measure, 240),
}
