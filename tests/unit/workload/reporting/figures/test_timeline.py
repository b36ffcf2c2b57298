"""The timelines that are drawn, and their order."""

from gpushare_workload.reporting.figures.timeline import timeline
from gpushare_workload.results.files import Setting, Timeline

SLICES, MPS = Setting("time-slicing", 100.0), Setting("mps", 100.0)


def line(setting: Setting, processes: int = 2) -> Timeline:
    return Timeline(setting, "small", 1, processes, tuple((index, 0.0, 5.0) for index in range(processes)))


def titles(*timelines: Timeline) -> list[str]:
    figure = timeline(timelines, [])
    return [panel.get_title(loc="left") for panel in figure.axes] if figure else []


def test_time_slices_are_drawn_above_mps() -> None:
    assert titles(line(MPS), line(SLICES)) == ["Time slices", "MPS"]


def test_what_has_both_is_preferred_then_the_most_processes() -> None:
    lines = (line(MPS, 2), line(SLICES, 2), line(MPS, 4), line(SLICES, 4), line(MPS, 8))
    figure = timeline(lines, [])
    assert figure is not None
    assert [len(panel.get_yticks()) for panel in figure.axes] == [4, 4]


def test_without_launches_there_is_nothing_to_draw() -> None:
    assert titles() == []
    assert titles(Timeline(MPS, "small", 1, 2, ())) == []
    assert titles(line(Setting("mps", 50.0))) == []
