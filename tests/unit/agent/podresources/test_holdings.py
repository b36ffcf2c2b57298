"""One reading of the kubelet: which container holds which slot."""

from gpushare.agent.podresources.holdings import view
from tests.unit.agent.podresources.held_devices import APP, OTHER, READING, TOOL, TWICE, held


def test_only_slots_of_ours_count_and_each_is_somebodys() -> None:
    holdings = view(1.0, [("gpushare.dev/a", "GPU-1::3"), ("nvidia.com/gpu", "GPU-2")], READING)
    assert holdings.allocatable == {("a", "GPU-1"): {3}}
    assert holdings.held == {("a", "GPU-1"): {0, 7}, ("b", "GPU-2"): {1}}
    assert holdings.pods() == {("a", "GPU-1"): {"ml/x", "web/y"}, ("b", "GPU-2"): {"ml/x"}}
    assert holdings.share_gpus() == {APP: ("a", "GPU-1"), OTHER: ("a", "GPU-1"), TOOL: ("b", "GPU-2")}
    assert holdings.asking["gpushare.dev/a"] == 3, "with the container whose device another release named"
    assert holdings.asking["gpushare.dev/b"] == 1
    assert holdings.held_ids["example.com/nic"] == {"eth1"}
    assert holdings.allocatable_ids["nvidia.com/gpu"] == {"GPU-2"}


def test_a_reading_says_when_each_newcomer_was_not_listed_yet() -> None:
    app, other = held(APP, "GPU-1::0"), held(OTHER, "GPU-1::1")
    first = view(1.0, [], [app])
    assert first.absent == {}, "of the first reading's nothing is known"
    second = view(2.0, [], [app, other], first)
    third = view(3.0, [], [app, other], second)
    assert second.absent == third.absent == {"web/y": 1.0}
    gone = view(4.0, [], [other], third)
    assert view(5.0, [], [app, other], gone).absent == {"web/y": 1.0, "ml/x": 4.0}


def test_a_slot_that_two_containers_have_is_one_slot_and_counts_for_both() -> None:
    holdings = view(1.0, [], TWICE)
    assert holdings.held == {("a", "GPU-1"): {0}}
    assert holdings.asking == {"gpushare.dev/a": 2}
