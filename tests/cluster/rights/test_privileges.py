"""The privileges with which each part runs on the node, as the kernel says, and proof that the lesser ones are
enough."""

from collections.abc import Iterator
from functools import partial

import pytest

from gpushare.process import users
from localcluster.kubectl import Object
from localcluster.paths import cache_root
from localcluster.programs.build import NVIDIA, build_component
from localcluster.stack import install
from tests.cluster.clients.test_observation import nobody_is_hurt, start_offender
from tests.cluster.harness import Harness, Share
from tests.cluster.node import can_give, processes_of_pod
from tests.cluster.rights.runtime_class import open_control, unprivileged_agent

KILL, SETGID, SETUID, SYS_ADMIN, SYS_RESOURCE = 1 << 5, 1 << 6, 1 << 7, 1 << 21, 1 << 24
"""Bits of capabilities(7)."""


def pids(harness: Harness, component: str, program: bytes) -> list[int]:
    """PIDs in the node of a component's processes that run `program`."""
    pods: list[Object] = harness.pods_of(component)
    return [pid for pod in pods for pid in processes_of_pod(harness, pod["metadata"]["uid"], program)]


def status(harness: Harness, component: str, program: bytes) -> dict[str, str]:
    """/proc/PID/status of a component's process that runs `program`."""
    (pid, *_) = pids(harness, component, program)
    lines = harness.in_node(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
def unprivileged(harness: Harness) -> Iterator[Harness]:
    build_component(NVIDIA, cache_root())
    with unprivileged_agent(harness, partial(install, harness.stack), simulated=True):
        yield harness


def test_an_unprivileged_agent_does_all_that_a_privileged_one_does(unprivileged: Harness) -> None:
    harness = unprivileged
    seen = status(harness, "agent", b"gpushare")
    assert int(seen["CapEff"], 16) == int(seen["CapBnd"], 16) == KILL | SYS_ADMIN
    assert (seen["Seccomp"], seen["NoNewPrivs"]) == ("2", "1")
    open_control(harness)
    with harness.share("lean", per_node=1, enforcement="Terminate") as share, harness.namespace() as tenant:
        names = tenant.neighbours("lean", 2)
        start_offender(tenant, "hog", "lean")
        assert tenant.wait_event("hog", "gpu-error", 30)["code"] == 810
        nobody_is_hurt(tenant, names)
        assert share.get()["status"]["gpus"]["ready"] == 1


@pytest.fixture(scope="module")
def served(harness: Harness) -> Iterator[Share]:
    """A share, so that there is an MPS pod."""
    with harness.share("bare", per_node=1) as share:
        yield share


@pytest.mark.parametrize(
    ("component", "program", "uid"),
    [
        ("operator", b"gpushare", users.OPERATOR),
        ("webhook", b"gpushare", users.WEBHOOK),
        ("simulated-driver", b"gpushare", 0),
    ],
)
@pytest.mark.usefixtures("served")
def test_every_other_part_has_no_capability_and_a_seccomp_profile(
    harness: Harness, component: str, program: bytes, uid: int
) -> None:
    seen = status(harness, component, program)
    assert {key: int(seen[key], 16) for key in ("CapEff", "CapPrm", "CapBnd")} == dict.fromkeys(
        ("CapEff", "CapPrm", "CapBnd"), 0
    )
    assert (seen["Seccomp"], seen["NoNewPrivs"]) == ("2", "1")
    assert seen["Uid"].split() == [str(uid)] * 4


@pytest.mark.parametrize(
    ("program", "uid", "may_become_another"),
    [
        (b"mps-supervisor", 0, 0),
        (b"nvidia-cuda-mps-control", 0, 0),
        (b"mps-broker", users.BROKER, SETUID | SETGID),
    ],
)
@pytest.mark.usefixtures("served")
def test_what_passes_descriptors_has_the_one_capability_for_that(
    harness: Harness, program: bytes, uid: int, may_become_another: int
) -> None:
    seen = status(harness, "mps", program)
    capabilities = {key: int(seen[key], 16) for key in ("CapEff", "CapPrm", "CapInh", "CapAmb")}
    given = SYS_RESOURCE if can_give(SYS_RESOURCE) else 0
    assert capabilities == {"CapEff": given, "CapPrm": given, "CapInh": 0, "CapAmb": 0}
    assert int(seen["CapBnd"], 16) == given | may_become_another
    assert (seen["Seccomp"], seen["NoNewPrivs"]) == ("2", "1")
    assert seen["Uid"].split() == [str(uid)] * 4


SHELLS = ("sh", "bash", "dash", "busybox", "env", "cat", "apt-get", "dpkg", "pip", "pip3", "perl", "curl", "wget")
PLACES = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "opt/gpushare/bin")


@pytest.mark.parametrize("component", ["operator", "webhook", "agent"])
def test_the_operators_image_has_neither_a_shell_nor_a_package_manager(harness: Harness, component: str) -> None:
    (pid, *_) = pids(harness, component, b"gpushare")
    root = harness.in_node(f"/proc/{pid}/root")
    assert (root / "opt/gpushare/bin/gpushare").exists()
    assert [f"{place}/{name}" for place in PLACES for name in SHELLS if (root / place / name).exists()] == []


def test_a_privileged_agent_is_what_the_documentation_says_it_is(harness: Harness) -> None:
    seen = status(harness, "agent", b"gpushare")
    assert int(seen["CapEff"], 16) & SYS_ADMIN
    assert seen["Seccomp"] == "0", "a privileged container has no seccomp profile"
