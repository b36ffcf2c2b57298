"""Whom the broker admits, by what the agent wrote and what the cgroup says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.mps.broker.admission import AttachAdmitted, AttachDenied, AttachUndecided, GrantsFile, judge
from gpushare.mps.files import ModelFiles, write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import ClientGrant, GpuGrants, GrantedContainer, GrantedPod, RefusedAttach
from gpushare.process.procfs import Owner

POD, INNER, UNKNOWN = (f"{digit * 8}-0000-0000-0000-000000000000" for digit in "123")
A, B, C = "a" * 64, "b" * 64, "c" * 64
SMALL, LARGE = (ClientGrant(threads=threads, memory_mib=1024, processes=1) for threads in (10, 40))


def grants(*containers: GrantedContainer, closed: str = "") -> GpuGrants:
    pod = GrantedPod(uid=POD, namespace="ml", name="train", containers=list(containers))
    return GpuGrants(uuid="GPU-0", share="inference", closed=closed, pods=[pod])


def container(name: str, grant: ClientGrant | None = None, of_id: str = "") -> GrantedContainer:
    return GrantedContainer(name=name, id=of_id, grant=grant)


BEYOND = GrantedContainer(name="app", id=A, too_many_protected=True)


def outcome(given: GpuGrants | None, *owners: Owner) -> tuple[str, str]:
    """(admitted, not yet, or why not; the container)."""
    match judge(given, owners):
        case AttachAdmitted(container=name):
            return "admitted", name
        case AttachUndecided(refused=refused):
            return f"not yet: {refused.reason}", refused.container
        case AttachDenied(reason=reason, container=name):
            return str(reason), name
    raise AssertionError


def test_a_pod_that_is_still_starting_is_waited_for_longer() -> None:
    """An image that is pulled for the one keeps the kubelet from telling the id of the other, which runs."""
    both = grants(container("app", SMALL), container("helper"))
    verdicts = [judge(both, [Owner(POD, A)]), judge(both, [Owner(UNKNOWN, A)]), judge(None, [Owner(POD, A)])]
    assert [isinstance(verdict, AttachUndecided) and verdict.starting for verdict in verdicts] == [True, False, False]


@pytest.mark.parametrize(
    ("given", "owner", "expected"),
    [
        (None, Owner(POD, A), ("not yet: NoGrant", "")),
        (grants(container("app", SMALL, A)), Owner(POD, A), ("admitted", "app")),
        (grants(container("app", SMALL, A)), Owner(UNKNOWN, A), ("not yet: NoGrant", "")),
        (grants(container("app", SMALL)), Owner(POD, A), ("admitted", "app")),
        (grants(container("app", SMALL, B)), Owner(POD, A), ("admitted", "app")),
        (grants(container("app", SMALL, A), container("helper", None, B)), Owner(POD, B), ("NoGrant", "helper")),
        (grants(container("one", SMALL, A), container("two", LARGE, B)), Owner(POD, B), ("admitted", "two")),
        (grants(container("one", SMALL, A), container("two", LARGE)), Owner(POD, C), ("not yet: NoGrant", "")),
        (grants(container("app", SMALL, A), container("helper")), Owner(POD, C), ("not yet: NoGrant", "")),
        (grants(container("one", SMALL), container("two", LARGE)), Owner(POD, C, "two"), ("admitted", "two")),
        (grants(container("app", SMALL), container("helper")), Owner(POD, C, "helper"), ("NoGrant", "helper")),
        (grants(container("app", SMALL, B), container("helper", None, A)), Owner(POD, C, "app"), ("admitted", "app")),
        (grants(container("app", SMALL), container("helper", None, A)), Owner(POD, A, "app"), ("NoGrant", "helper")),
        (grants(container("one", SMALL), container("two", LARGE)), Owner(POD, C, "gone"), ("not yet: NoGrant", "")),
        (grants(container("app", None, A)), Owner(POD, A), ("NoGrant", "app")),
        (grants(BEYOND), Owner(POD, A), ("TooManyProtected", "app")),
        (grants(container("app", SMALL, A), closed="GpuLost"), Owner(POD, A), ("not yet: GpuClosed", "app")),
        (grants(container("app", None, A), closed="GpuLost"), Owner(POD, A), ("NoGrant", "app")),
    ],
    ids=[
        "nothing is known of the GPU",
        "a container with a part",
        "a pod without one",
        "the status does not show its id yet",
        "it started again, and the status shows its earlier id",
        "a container beside it",
        "each of two has its own",
        "one of two, not known which",
        "the one with a part or the one beside it, not known which",
        "one of two, by its mounts",
        "one beside it, by its mounts",
        "it started again beside another, by its mounts",
        "the status counts before the mounts",
        "its mounts name none that the file lists",
        "its pod's part is another container's",
        "one more that is Protected than the GPU may have",
        "the GPU takes no client",
        "and would not take this one",
    ],
)
def test_a_process_is_judged_by_its_container(given: GpuGrants | None, owner: Owner, expected: tuple[str, str]) -> None:
    assert outcome(given, owner) == expected


@pytest.mark.parametrize(
    ("listed", "asked"),
    [
        ([container("app", SMALL), container("helper")], [7]),
        ([container("app", SMALL, A), container("helper")], []),
        ([container("app", SMALL)], []),
    ],
    ids=["which of two is not known", "it is", "there is one"],
)
def test_mounts_are_read_only_where_the_status_does_not_tell(
    gpu: GpuDir, listed: list[GrantedContainer], asked: list[int]
) -> None:
    """A process makes as many mounts as it likes, and each of its connections would cost the broker their reading."""
    write_model(gpu.grants, grants(*listed))
    pids: list[int] = []
    file = GrantsFile(gpu, "inference", ModelFiles(), lambda pid, uid: pids.append(pid) or "app" if uid == POD else "")
    owners = file.named(7, [Owner(POD, A), Owner(INNER, B)])
    assert pids == asked
    assert file.held_by(owners) == AttachAdmitted(Owner(POD, A), "app", SMALL)


def test_a_process_of_no_pod_has_no_grant() -> None:
    assert outcome(grants(container("app", SMALL, A))) == (RefusedAttach.NO_GRANT, "")


def test_the_outermost_pod_counts() -> None:
    """A container that may write cgroups can make some of its own, with whatever names: another pod's, for one."""
    given = grants(container("app", SMALL, A))
    assert outcome(given, Owner(POD, A), Owner(INNER, B)) == ("admitted", "app")
    assert outcome(given, Owner(UNKNOWN, B), Owner(POD, A)) == ("not yet: NoGrant", "")


@given(st.lists(st.tuples(st.sampled_from([SMALL, LARGE, None]), st.sampled_from(["", A, B, C])), max_size=5))
def test_nobody_gets_more_than_a_container_of_the_pod_has(listed: list[tuple[ClientGrant | None, str]]) -> None:
    given = grants(*(container(f"c{number}", *item) for number, item in enumerate(listed)))
    verdict = judge(given, [Owner(POD, A)])
    if isinstance(verdict, AttachAdmitted):
        assert verdict.grant in [grant for grant, _ in listed]
        exact = [grant for grant, of_id in listed if of_id == A]
        assert not exact or verdict.grant == exact[0]
