"""What each GPU is to do, by what the operator assigned and what is on disk."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpushare.agent.reconcile.assignments import GpuStage, plan
from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare
from gpushare.mps.wire import DaemonLimits, DesiredDaemon

OLD = DaemonLimits(threads=10, memory_mib=1024)


def share(name: str = "a", **memory: str) -> GpuShare:
    clients = {
        "perGpu": 8,
        "threads": {"default": 25, "max": 50},
        "memory": {"default": "16Gi", **memory},
    }
    return GpuShare.model_validate({"metadata": {"name": name}, "spec": {"clients": clients}})


def disk(name: str = "a", *, stop: bool = False) -> DesiredDaemon:
    return DesiredDaemon(uuid="GPU-1", share=name, limits=OLD, stop=stop)


def assigned(name: str = "a", **fields: bool) -> list[Assignment]:
    return [Assignment(uuid="GPU-1", share=name, **fields)]


@pytest.mark.parametrize(
    ("sentence", "assignments", "on_disk", "drained", "stage"),
    [
        ("an assigned GPU that is not taken yet is taken", assigned(), None, False, GpuStage.TAKE),
        ("one that is taken serves", assigned(), disk(), False, GpuStage.SERVE),
        ("a GPU is kept while assignments are not known", None, disk(), True, GpuStage.KEEP),
        ("an empty list is an answer: the GPU leaves", [], disk(), False, GpuStage.LEAVE),
        ("and once drained it stops", [], disk(), True, GpuStage.STOP),
        ("a GPU that moves leaves its old share first", assigned("b"), disk(), False, GpuStage.LEAVE),
        ("and stops when drained", assigned("b"), disk(), True, GpuStage.STOP),
        ("draining goes on until the operator removes the assignment",
         assigned(draining=True), disk(), True, GpuStage.DRAIN),
        ("draining what was never taken has nothing to wait for",
         assigned(draining=True), None, False, GpuStage.NOTHING_TO_DRAIN),
        ("a paused GPU drains, and stays", assigned(paused=True), disk(), True, GpuStage.DRAIN),
        ("one that is paused before it was taken has nothing to wait for",
         assigned(paused=True), None, False, GpuStage.NOTHING_TO_DRAIN),
        ("a GPU that shall stop stops, even if assigned again", assigned(), disk(stop=True), False, GpuStage.STOP),
        ("and also while assignments are not known", None, disk(stop=True), False, GpuStage.STOP),
    ],
)  # fmt: skip
def test_stage(
    sentence: str, assignments: list[Assignment] | None, on_disk: DesiredDaemon | None, drained: bool, stage: GpuStage
) -> None:
    wanted = {"GPU-1": on_disk} if on_disk else {}
    plans = plan(assignments, wanted, {"a": share(), "b": share("b")}, {"GPU-1"} if drained else set())
    assert plans["GPU-1"].stage is stage, sentence


def test_clients_are_ended_only_of_the_share_whose_maxwait_is_over() -> None:
    def ends(assignments: list[Assignment] | None) -> bool:
        return plan(assignments, {"GPU-1": disk()}, {"a": share()}, ())["GPU-1"].ends_clients

    assert ends(assigned(paused=True, terminate_clients=True))
    assert not ends(assigned(paused=True))
    assert not ends(assigned("b", terminate_clients=True)), "the GPU is still that of another share"
    assert not ends(None)


def test_a_share_that_changed_changes_the_limits_on_disk() -> None:
    assert plan(assigned(), {"GPU-1": disk()}, {"a": share()}, ())["GPU-1"].limits == DaemonLimits(
        threads=50, memory_mib=16384
    )


def test_a_share_that_vanished_keeps_the_limits_on_disk() -> None:
    assert plan(assigned(), {"GPU-1": disk()}, {}, ())["GPU-1"].limits == OLD


NAMES = st.sampled_from(["a", "b"])
UUIDS = st.sampled_from(["GPU-1", "GPU-2", "GPU-3"])


@given(
    st.none() | st.lists(st.builds(Assignment, uuid=UUIDS, share=NAMES, draining=st.booleans()), max_size=3),
    st.dictionaries(UUIDS, NAMES),
    st.sets(UUIDS),
)
def test_nothing_stops_that_is_not_drained_or_without_an_explicit_list(
    assignments: list[Assignment] | None, on_disk: dict[str, str], drained: Collection[str]
) -> None:
    wanted = {uuid: DesiredDaemon(uuid=uuid, share=name, limits=OLD) for uuid, name in on_disk.items()}
    for uuid, planned in plan(assignments, wanted, {}, drained).items():
        if planned.stage is GpuStage.STOP:
            assert assignments is not None
            assert uuid in drained
        assert uuid not in on_disk or planned.share == on_disk[uuid]


@pytest.mark.parametrize(
    ("sentence", "on_disk", "known", "shows"),
    [
        ("a share that is known says it", False, share(reportedTotal="Grant"), True),
        ("and takes it back", True, share(), False),
        ("while it is not known, what it said last holds", True, None, True),
        ("and where it said nothing, nothing is shown", False, None, False),
    ],
)
def test_whether_the_grant_is_shown(sentence: str, on_disk: bool, known: GpuShare | None, shows: bool) -> None:
    wanted = structs.replace(disk(), shows_grant=on_disk)
    plans = plan(None, {"GPU-1": wanted}, {"a": known} if known else {}, set())
    assert plans["GPU-1"].shows_grant is shows, sentence


def test_a_gpu_is_taken_with_what_its_share_says() -> None:
    plans = plan(assigned(), {}, {"a": share(reportedTotal="Grant")}, set())
    assert plans["GPU-1"].shows_grant
