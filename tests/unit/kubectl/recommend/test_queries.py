"""What Prometheus is asked, and what is made of answers that lack something."""

import re

import pytest

from gpushare.kubectl.recommend.prometheus import PrometheusSeries
from gpushare.kubectl.recommend.queries import KnownGpu, fault_question, history_of, known_gpus, questions, step_of
from gpushare.kubectl.rules.recommend.history import ActivityPast
from gpushare.kubectl.rules.recommend.rules import recommend
from tests.unit.docs.exported import exposed
from tests.unit.kubectl.cluster_objects import gpu_node
from tests.unit.kubectl.rules.recommend.made_up import share

DAY = 86_400


@pytest.mark.parametrize(("window", "step"), [(3600, 300), (7 * DAY, 300), (30 * DAY, 1320), (90 * DAY, 3900)])
def test_a_window_has_a_bounded_number_of_steps_of_whole_minutes(window: int, step: int) -> None:
    assert step_of(window) == step
    assert window / step <= 2016


def test_every_metric_that_is_asked_for_is_one_that_gpushare_exports() -> None:
    asked = [*questions(share(), DAY).values(), fault_question(share(), 300)]
    names = {name for query in asked for name in re.findall(r"gpushare_\w+", query)}
    assert names <= {metric.name for metric in exposed()}
    assert len(names) == 10


def test_each_question_is_about_this_share_alone() -> None:
    for name, query in questions(share(), DAY).items():
        series = re.findall(r"gpushare_(?!gpu_utilization)\w+(\{[^}]*\})", query)
        assert series, name
        assert set(series) == {'{share="team"}'}, name


def test_no_answer_at_all_is_a_share_that_was_not_seen() -> None:
    nothing = dict.fromkeys(questions(share(), 7 * DAY), ())
    past = history_of(share(), nothing, (), {"GPU-0": KnownGpu(1, 1, "team")}, 1e9, 7 * DAY)
    assert [gpu.samples for gpu in past.gpus] == [0]
    assert recommend(past).advice == ()
    assert all("not seen in 7d" in note for note in recommend(past).notes)


def test_containers_and_faults_of_another_clusters_gpu_are_left_out() -> None:
    far = PrometheusSeries({"namespace": "ml", "pod": "p", "container": "c", "uuid": "GPU-far"}, [(1.0, 1.0)])
    near = PrometheusSeries({**far.labels, "uuid": "GPU-0"}, [(1.0, 5.0 * 1024 * 1024 - 1)])
    answers = dict.fromkeys(questions(share(), DAY), ()) | {"used_most": [far, near]}
    past = history_of(share(), answers, [far, near], {"GPU-0": KnownGpu(1, 1, "other")}, 1e9, DAY)
    assert [(container.uuid, container.memory_most) for container in past.containers] == [("GPU-0", 5)]
    assert [(fault.uuid, fault.present) for fault in past.faults] == [("GPU-0", frozenset({"ml/p"}))]


def test_a_gpu_belongs_to_the_share_that_it_is_assigned_to() -> None:
    node = gpu_node("GPU-0", "GPU-1")
    node = node.model_validate(node.wire() | {"spec": {"assignments": [{"uuid": "GPU-1", "share": "team"}]}})
    assert {uuid: gpu.share for uuid, gpu in known_gpus([node]).items()} == {"GPU-0": "", "GPU-1": "team"}


def test_activity_is_of_containers_that_are_there_now() -> None:
    of = {"namespace": "ml", "pod": "p", "container": "c", "uuid": "GPU-0"}
    gone = {**of, "pod": "gone"}

    def each(value: float) -> list[PrometheusSeries]:
        return [PrometheusSeries(labels, [(1.0, value)]) for labels in (of, gone)]

    answers = dict.fromkeys(questions(share(), DAY), ()) | {
        "used_most": each(1.0),
        "class": [PrometheusSeries({**of, "class": "Normal"}, [(1.0, 7.0)])],
        "active": each(15_000.0),
        "launched": each(0.2),
        "active_samples": each(100.0),
    }
    seen = history_of(share(), answers, (), {"GPU-0": KnownGpu(1, 1, "team")}, 1e9, DAY)
    assert {container.pod: container.activity for container in seen.containers} == {
        "p": ActivityPast("Normal", 0.5, 1, 100),
        "gone": None,
    }
