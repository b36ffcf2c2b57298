"""The table of what one command runs on a real GPU: each row can be run, and no scenario is forgotten."""

from gpushare_workload import cli
from gpushare_workload.scenarios import SCENARIOS
from measurements.gpu.workload import cases

ELSEWHERE = {"fault", "depart", "ddp"}
"""The first two are of measurements/gpu/workload/beside.py, with neighbours; the last needs PyTorch and GPUs."""


def test_every_row_can_be_run_and_has_a_name_of_its_own() -> None:
    for case in cases.CASES:
        assert cli.parser().parse_args(["run", *case.arguments]).scenario == case.arguments[0]
    assert len({case.name for case in cases.CASES}) == len(cases.CASES)


def test_every_scenario_is_run_on_a_gpu() -> None:
    assert {case.arguments[0] for case in cases.CASES} == set(SCENARIOS) - ELSEWHERE


def test_figures_are_judged_by_what_the_scenario_reports() -> None:
    kernels = {"event": "measured", "what": "kernels", "times_as_fast": 3.0}
    copies = {"event": "measured", "what": "copies and kernels", "pinned": True, "times_as_fast": 1.5}
    assert cases.streams_overlap([kernels, copies])
    assert not cases.streams_overlap([kernels | {"times_as_fast": 1.1}, copies])
    assert not cases.streams_divide([kernels])
    pair = {"event": "measured", "kind": "compute", "beside": "transfer", "slowdown": 1.1}
    assert cases.copies_leave_the_sms_alone([pair])
    assert not cases.copies_leave_the_sms_alone([pair | {"slowdown": 1.9}])


def test_a_service_is_judged_by_what_it_served_and_by_what_nvml_saw() -> None:
    times = {"latency": {"p50_ms": 0.3}, "service": {"p50_ms": 0.2}}
    figure = {"event": "measured", "unserved": 0, "gpu_busy_percent": 2.3, **times}
    assert cases.served_all([figure])
    assert not cases.served_all([figure | {"unserved": 1}])
    assert not cases.served_all([figure | {"gpu_busy_percent": None}])
    assert not cases.served_all([figure | {"latency": {"p50_ms": 0.1}}])
