"""The scenarios by name: each states its question."""

from gpushare_workload.scenarios import SCENARIOS, scenario


def test_every_scenario_states_its_question() -> None:
    for name in SCENARIOS:
        first = (scenario(name).__doc__ or "").splitlines()[0]
        assert first.startswith(f"{name}: "), first
        assert first.endswith("?"), first
        assert name == scenario(name).NAME
