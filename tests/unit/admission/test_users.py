"""Who a client may be: the MPS daemon obeys UID 0 of the node, so nobody becomes it without the share's leave."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.admission.pods import admit_pod, check_pod
from gpushare.admission.review import Admitted, Denied, Reason
from gpushare.grant.user import way_to_root
from tests.unit.admission.test_pods import SLOT, admitted, container, data, pod, refused, share
from tests.unit.admission.test_pods_claims import data as claim_data
from tests.unit.admission.test_pods_claims import user as claiming

ADDED = {"runAsNonRoot": True, "allowPrivilegeEscalation": False}


def contexts(of_pod: dict[str, Any] | None, of_container: dict[str, Any] | None, **spec: Any) -> dict[str, Any]:
    fields = {"securityContext": of_container} if of_container is not None else {}
    if of_pod is not None:
        spec["securityContext"] = of_pod
    return pod(container(SLOT, **fields), **spec)


def result(body: dict[str, Any]) -> Any:
    return admitted(body)["spec"]["containers"][0].get("securityContext")


@pytest.mark.parametrize(
    ("of_pod", "of_container", "after"),
    [
        pytest.param(None, None, ADDED, id="nothing said"),
        pytest.param({}, {}, ADDED, id="nothing said in two ways"),
        pytest.param({"runAsUser": 7}, None, {"allowPrivilegeEscalation": False}, id="the pod's user"),
        pytest.param(None, {"runAsUser": 7}, {"runAsUser": 7, "allowPrivilegeEscalation": False}, id="its user"),
        pytest.param(
            {"runAsUser": 0}, {"runAsUser": 7}, {"runAsUser": 7, "allowPrivilegeEscalation": False}, id="not the pod's"
        ),
        pytest.param({"runAsNonRoot": True}, None, {"allowPrivilegeEscalation": False}, id="the pod is not root"),
        pytest.param({"runAsUser": 7, "runAsNonRoot": False}, ADDED, ADDED, id="its own word counts"),
        pytest.param(
            {"runAsUser": 7, "runAsNonRoot": False},
            {"readOnlyRootFilesystem": True},
            {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False},
            id="a user makes the other word empty",
        ),
    ],
)
def test_what_is_left_open_is_closed(of_pod: Any, of_container: Any, after: dict[str, Any]) -> None:
    body = contexts(of_pod, of_container)
    assert result(body) == after
    patched = admitted(body)
    assert check_pod(patched, data()) == Admitted()


@pytest.mark.parametrize(
    ("of_pod", "of_container", "sentence"),
    [
        ({"runAsUser": 0}, None, "spec.securityContext.runAsUser: 0: UID 0 of the node could end its neighbours"),
        ({"runAsUser": 7}, {"runAsUser": 0}, "spec.containers[0].securityContext.runAsUser: 0: UID 0"),
        ({"runAsNonRoot": False}, None, "spec.securityContext.runAsNonRoot: false: the image's user may be root"),
        (None, {"privileged": True}, "spec.containers[0].securityContext.privileged: true: it is root on the node"),
        (
            None,
            {"runAsUser": 7, "allowPrivilegeEscalation": True},
            "spec.containers[0].securityContext.allowPrivilegeEscalation: true: a setuid program would make it UID 0",
        ),
        (
            None,
            {"runAsUser": 7, "capabilities": {"add": ["CAP_SYS_ADMIN"]}},
            "spec.containers[0].securityContext.capabilities.add: CAP_SYS_ADMIN brings allowPrivilegeEscalation",
        ),
    ],
)
def test_a_way_to_uid_0_is_refused_with_what_to_do(of_pod: Any, of_container: Any, sentence: str) -> None:
    [problem] = refused(contexts(of_pod, of_container))
    assert problem.startswith(sentence)
    assert "spec.hostUsers to false" in problem
    assert "clients.rootUser: Allow" in problem


def test_the_refusal_is_counted_as_one_about_the_user() -> None:
    answer = admit_pod(contexts({"runAsUser": 0}, None), data())
    assert isinstance(answer, Denied)
    assert answer.reasons == {Reason.USER}


def test_root_of_a_user_namespace_is_nobody_on_the_node() -> None:
    assert result(contexts({"runAsUser": 0}, {"privileged": True}, hostUsers=False)) == {"privileged": True}


@pytest.mark.parametrize("of_pod", [None, {"runAsUser": 0}], ids=["the image's user", "runAsUser: 0"])
def test_a_pod_whose_user_namespace_the_api_server_dropped_is_refused_before_it_is_stored(of_pod: Any) -> None:
    """As API servers do whose feature UserNamespacesSupport is off (the default before 1.33), after mutation."""
    patched = admitted(contexts(of_pod, None, hostUsers=False))
    assert check_pod(patched, data()) == Admitted()
    del patched["spec"]["hostUsers"]
    assert isinstance(check_pod(patched, data()), Denied)


def test_a_share_may_take_root() -> None:
    trusting = share(clients={"rootUser": "Allow"})
    body = contexts({"runAsUser": 0}, None)
    assert "securityContext" not in admitted(body, data(trusting))["spec"]["containers"][0]


def test_containers_without_a_part_of_a_gpu_may_be_who_they_like() -> None:
    sidecar = container(None, name="sidecar", securityContext={"runAsUser": 0, "privileged": True})
    patched = admitted(pod(container(), sidecar))
    assert patched["spec"]["containers"][1] == sidecar


def test_clients_by_a_claim_are_bound_alike() -> None:
    (client,) = admitted(pod(claiming("mine")), claim_data())["spec"]["containers"]
    assert client["securityContext"] == ADDED
    answer = admit_pod(pod(claiming("mine"), securityContext={"runAsUser": 0}), claim_data())
    assert isinstance(answer, Denied)


MAYBE = st.sampled_from([None, True, False])
USERS = st.sampled_from([None, 0, 7])
OF_POD = st.fixed_dictionaries({}, optional={"runAsUser": USERS, "runAsNonRoot": MAYBE})
OF_CONTAINER = st.fixed_dictionaries(
    {},
    optional={
        "runAsUser": USERS,
        "runAsNonRoot": MAYBE,
        "privileged": MAYBE,
        "allowPrivilegeEscalation": MAYBE,
        "capabilities": st.sampled_from([None, {}, {"add": ["CAP_SYS_ADMIN"]}]),
    },
)


@given(OF_POD, OF_CONTAINER, MAYBE)
def test_whatever_is_said_of_users_what_is_admitted_has_no_way_to_root(
    of_pod: dict[str, Any], of_container: dict[str, Any], host_users: bool | None
) -> None:
    answer = admit_pod(body := contexts(of_pod, of_container, hostUsers=host_users), data())
    if isinstance(answer, Admitted):
        patched = admitted(body)
        assert way_to_root(patched["spec"], patched["spec"]["containers"][0]) == ""
        assert check_pod(patched, data()) == Admitted()
        context = patched["spec"]["containers"][0].get("securityContext") or {}
        said = {name: value for name, value in of_container.items() if value is not None}
        assert said.items() <= context.items(), "what a tenant wrote stays"
