"""The command lines of the components."""

from pathlib import Path

from localcluster.cluster import components
from localcluster.cluster.layout import Layout


def test_every_component_is_started_exactly_once(layout: Layout) -> None:
    assert sorted(components.FIRST + components.THEN) == sorted(components.commands(layout))


def test_a_component_is_recognised_by_the_name_of_its_program(layout: Layout) -> None:
    assert all(Path(argv[0]).name == name for name, argv in components.commands(layout).items())
