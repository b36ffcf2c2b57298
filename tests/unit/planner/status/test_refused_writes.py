"""What a share says of writes that the API server refuses, and who is to mend what."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.messages.refused_writes import RefusedWrite, remedy
from gpushare.planner import MpsPod, Snapshot, Template, plan
from gpushare.planner.model import EPOCH

WRITE = RefusedWrite("to apply daemonsets gpushare-system/gpushare-mps-a", 403, "")
REMEDIES = {
    "quota": ('Forbidden: pods "x" is forbidden: exceeded quota: small, requested: pods=1', "raise that ResourceQuota"),
    "our policy": (
        "Forbidden: ValidatingAdmissionPolicy 'gpushare-operator-nodes' with binding 'x' denied request: no",
        "gpushare's own policy: upgrade the chart",
    ),
    "another policy": (
        "Forbidden: ValidatingAdmissionPolicy 'no-host-pid' with binding 'x' denied request: no",
        "leave gpushare's namespace and objects out",
    ),
    "a webhook": (
        'Forbidden: admission webhook "v.kyverno.svc" denied the request: no',
        "leave gpushare's namespace and objects out",
    ),
    "a right": (
        'Forbidden: daemonsets.apps "x" is forbidden: User "u" cannot patch resource "daemonsets"',
        "lacks a right: apply the chart of its own version",
    ),
}


@pytest.mark.parametrize(("said", "told"), REMEDIES.values(), ids=REMEDIES)
def test_the_remedy_is_that_of_whoever_refused_it(said: str, told: str) -> None:
    assert told in remedy(replace(WRITE, said=said))


@pytest.mark.parametrize(
    ("status", "squatter", "told"),
    [
        (409, "", "something else writes it"),
        (404, "", "install the chart again"),
        (422, "", "with its definitions"),
        (422, "resourceclaimtemplate -n a b", "delete that (kubectl delete resourceclaimtemplate -n a b)"),
    ],
)
def test_a_refusal_without_a_refuser_is_judged_by_its_status(status: int, squatter: str, told: str) -> None:
    assert told in remedy(replace(WRITE, status=status, squatter=squatter))


def _told(make: Any, refused: tuple[RefusedWrite, ...], **daemon: Any) -> dict[str, Any]:
    node = make.node(gpus=1, assignments=[make.assigned("a")], daemons=[make.daemon("a", **daemon)])
    told: dict[str, Any] = make.told(plan(Snapshot((make.share(),), (node,), refused_writes={"a": refused})))
    return told


def test_a_share_that_serves_stays_ready_while_a_write_is_refused(make: Any) -> None:
    told = _told(make, (replace(WRITE, said="no"),))
    assert told["Ready"].status == "True"
    assert (told["WritesAccepted"].status, told["WritesAccepted"].reason) == ("False", "WriteRefused")
    assert "daemonsets gpushare-system/gpushare-mps-a: no;" in told["WritesAccepted"].message


def test_a_refused_write_is_the_first_cause_of_what_is_missing(make: Any) -> None:
    told = _told(make, (replace(WRITE, said="no"),) * 5, ready=False, reason="Pending", message="")
    assert told["Ready"].reason == "WriteRefused"
    assert "and 3 more writes; DaemonsStarting: 1 of 1 MPS daemon not ready" in told["Ready"].message


def test_a_share_whose_writes_are_taken_has_no_condition_of_it(make: Any) -> None:
    assert "WritesAccepted" not in _told(make, ())


@pytest.mark.parametrize("reason", ["Pending", "Starting", "DaemonFailed"])
def test_what_is_wrong_with_an_mps_pod_is_told_whatever_its_daemon_says(make: Any, reason: str) -> None:
    node = make.node(gpus=1, assignments=[make.assigned("a")], daemons=[make.daemon("a", ready=False, reason=reason)])
    pod = MpsPod("mps-1", "u", "a", node.name, "t", EPOCH, trouble="a policy has changed its hostPID")
    decided = plan(Snapshot((make.share(),), (node,), pods=(pod,), templates={"a": Template("t")}))
    assert make.told(decided)["DaemonsReady"].message.endswith("; MPS pod mps-1: a policy has changed its hostPID")


def test_a_gpu_without_an_mps_pod_says_where_to_look(make: Any) -> None:
    node = make.node(gpus=1, assignments=[make.assigned("a")], daemons=[])
    decided = plan(Snapshot((make.share(),), (node,), templates={"a": Template("t")}))
    assert "it has no MPS pod yet" in make.told(decided)["DaemonsReady"].message
