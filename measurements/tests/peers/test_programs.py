"""What eight programs did, from the lines that they wrote."""

from measurements.peers.cases.programs import _figures


def line(rate: float, *latencies: float) -> dict[str, object]:
    return {"rate": rate, "latency_ms": list(latencies)}


def test_rates_and_steps_of_all_programs_are_added() -> None:
    figures = _figures([[line(10, 1.0, 2.0), line(20, 3.0, 4.0)], [line(5, 100.0)]])
    assert figures["per_second"] == 15 + 5, "each program has the mean of its lines"
    assert figures["per_second_of_one"] == {"least": 5, "median": 10, "largest": 15}
    assert (figures["p50_ms"], figures["p99_ms"]) == (3.0, 100.0)
