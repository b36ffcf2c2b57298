"""Real programs as eight pods: how much they do together, and how long one step takes."""

import time
from typing import Any

from gpushare.kubectl.rules.trial.printed import percentile
from gpushare.kubectl.rules.trial.spread import Spread
from measurements.gpu.stack.suites import parts
from measurements.peers.ways.way import CLIENTS, Clients, Way, clients
from tests.cluster.harness import Harness, wait_until

PROGRAMS = {"yolos": ("yolos.py",), "decode-medium": ("decode.py", "--size", "medium")}
"""YOLOS-small, one image at a time; and a GPT of 355 million parameters, each token a CUDA graph."""
START_SECONDS, WINDOW_SECONDS = 60, 6.0


def measure(harness: Harness, way: Way) -> dict[str, Any]:
    """Figures by program: images or tokens per second of all eight together, and milliseconds of a step."""
    return {name: _program(harness, way, program) for name, program in PROGRAMS.items()}


def _program(harness: Harness, way: Way, program: tuple[str, ...]) -> dict[str, Any]:
    """The programs come from the machine by hostPath, which the stricter standards forbid."""
    with clients(harness, way, enforce="privileged") as tenant:
        names = [f"program-{number}" for number in range(CLIENTS)]
        pods = [tenant.pod(name) for name in names]
        for pod in pods:
            parts.run_program(pod, () if harness.stack.simulated else program)
        tenant.start(*pods)
        for name in names:
            what = f"{name} computes"
            wait_until(
                what, lambda client=name: tenant.log(client), START_SECONDS, lambda client=name: tenant.explain(client)
            )
        before = {name: len(tenant.log(name)) for name in names}
        time.sleep(WINDOW_SECONDS)
        return _figures([_since(tenant, name, lines) for name, lines in before.items()])


def _since(tenant: Clients, name: str, before: int) -> list[dict[str, Any]]:
    """The lines that a program wrote after its first `before` ones. The next one began before: it is left out."""
    return tenant.log(name)[before + 1 :]


def _figures(lines: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """`lines`: of each program, at least one. Each has the rate since the line before it, and the time of each step."""
    rates = [sum(line["rate"] for line in of_one) / len(of_one) for of_one in lines]
    latencies = [value for of_one in lines for line in of_one for value in line["latency_ms"]]
    return {
        "clients": len(lines),
        "per_second": round(sum(rates), 2),
        "per_second_of_one": Spread.of(rates).as_json(),
        "p50_ms": percentile(latencies, 50),
        "p99_ms": percentile(latencies, 99),
    }
