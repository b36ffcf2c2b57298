"""Several shares on one node, and what becomes of a GPU when a share lets go of it."""

from localcluster.kubectl import Object
from tests.cluster.harness import Harness, condition, wait_until


def assigned(harness: Harness) -> dict[str, str]:
    return {
        assignment["uuid"]: assignment["share"] for assignment in harness.gpu_node()["spec"].get("assignments") or []
    }


def test_two_shares_split_a_nodes_gpus_and_a_third_is_told_who_holds_them(harness: Harness) -> None:
    with harness.share("left", per_node=1) as left, harness.share("right", per_node=1, per_gpu=4) as right:
        assert sorted(assigned(harness).values()) == ["left", "right"]
        left.wait_capacity(8)
        right.wait_capacity(4)
        with harness.share("third", ready=False) as third:
            message: str = wait_until("a verdict", lambda: condition(third.get(), "GpusAssigned").get("message", ""))
            assert '"left"' in message or '"right"' in message


def test_a_gpu_moves_to_the_other_share_only_once_it_is_idle(harness: Harness) -> None:
    with harness.share("wide", per_node=2) as wide, harness.namespace() as tenant:
        names = tenant.neighbours("wide", 2)
        gpus = {tenant.events_of(name, "limits")[0]["observed"]["uuid"]: name for name in names}
        assert len(gpus) == 2, "two clients of an empty share go to different GPUs"
        with harness.share("heir", ready=False, per_node=1) as heir:
            wide.apply(per_node=1)
            draining = wait_until("a GPU drains", lambda: draining_gpu(harness.gpu_node()))
            wide.wait_capacity(8 + 1)
            assert assigned(harness)[draining] == "wide"
            assert len(tenant.running()) == 2
            tenant.delete_pods(gpus[draining])
            heir.wait_ready(gpus=1)
            assert assigned(harness)[draining] == "heir"
            assert len(tenant.running()) == 1


def draining_gpu(node: Object) -> str:
    return next((assignment["uuid"] for assignment in node["spec"]["assignments"] if assignment.get("draining")), "")
