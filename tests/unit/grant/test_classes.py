"""The class of a client: who names it, who may have it, and the sentence for who may not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.client_class import ClientClass
from gpushare.api.gpushare import GpuShare
from gpushare.api.names import ANNOTATION_BESIDE_PROTECTED, ANNOTATION_CLASS
from gpushare.grant.classes import GrantedClass, granted_class
from gpushare.grant.model import default_grant
from gpushare.grant.refused import GrantRefused

CLASS, BESIDE = ANNOTATION_CLASS, ANNOTATION_BESIDE_PROTECTED


def share(classes: dict[str, Any] | None = None) -> GpuShare:
    clients = {"perGpu": 4, "memory": {"default": "4Gi"}} | ({} if classes is None else {"classes": classes})
    sizes = [{"name": "batch", "threads": 25, "memory": "4Gi", "class": "BestEffort"}] if classes is not None else []
    sizes += [{"name": "plain", "threads": 25, "memory": "4Gi"}]
    spec = {"clients": clients, "delivery": "ResourceClaim", "sizes": sizes}
    return GpuShare.model_validate({"metadata": {"name": "a"}, "spec": spec})


def with_queue(**clients: Any) -> GpuShare:
    spec = {"clients": {"perGpu": 4, "memory": {"default": "4Gi"}, "queue": {"slots": 8}, **clients}}
    return GpuShare.model_validate({"metadata": {"name": "a"}, "spec": spec})


def test_a_share_with_a_queue_and_no_classes_has_normal_clients_alone() -> None:
    normal = GrantedClass(ClientClass.NORMAL)
    assert granted_class(with_queue(), {}, "team") == normal
    assert default_grant(with_queue()).client_class is ClientClass.NORMAL
    with pytest.raises(GrantRefused, match="needs classes"):
        granted_class(with_queue(), {CLASS: "Protected"}, "team")
    assert granted_class(with_queue(classes={}), {CLASS: "Protected"}, "team") == GrantedClass(ClientClass.PROTECTED)
    assert default_grant(with_queue(classes={})).client_class is None


@pytest.mark.parametrize(
    ("classes", "annotations", "size", "granted"),
    [
        pytest.param(None, {}, None, (None, 0), id="a share without classes grants none"),
        pytest.param({}, {}, None, (ClientClass.NORMAL, 0), id="the share's own default"),
        pytest.param({"default": "BestEffort"}, {}, None, (ClientClass.BEST_EFFORT, 50), id="a default it names"),
        pytest.param({}, {}, "batch", (ClientClass.BEST_EFFORT, 50), id="the size's"),
        pytest.param({"default": "Protected"}, {}, "plain", (ClientClass.PROTECTED, 0), id="a size without one"),
        pytest.param({}, {CLASS: "Protected"}, "batch", (ClientClass.PROTECTED, 0), id="the pod before the size"),
        pytest.param({"default": "BestEffort"}, {BESIDE: "20"}, None, (ClientClass.BEST_EFFORT, 20), id="less SMs"),
        pytest.param({"protected": {"namespaces": ["team"]}}, {CLASS: "Protected"}, None, (ClientClass.PROTECTED, 0),
                     id="a namespace that may"),
    ],
)  # fmt: skip
def test_the_pod_names_its_class_before_the_size_and_the_share(
    classes: dict[str, Any] | None, annotations: dict[str, str], size: str | None, granted: tuple[Any, int]
) -> None:
    assert granted_class(share(classes), annotations, "team", size) == GrantedClass(*granted)


FIELD = f"metadata.annotations[{CLASS}]: "
PART = f"metadata.annotations[{BESIDE}]: "


@pytest.mark.parametrize(
    ("classes", "annotations", "sentence"),
    [
        pytest.param(None, {CLASS: "Protected"},
                     f'{FIELD}"Protected" needs classes, which GpuShare "a" has not (spec.clients.classes); remove the '
                     "annotation", id="a share without classes"),
        pytest.param(None, {BESIDE: "20"},
                     f'{PART}"20" needs classes, which GpuShare "a" has not (spec.clients.classes); remove the '
                     "annotation", id="a part without classes"),
        pytest.param({}, {CLASS: "protected"},
                     f'{FIELD}"protected" is no class of clients; write Protected, Normal or BestEffort', id="a word"),
        pytest.param({"allowed": ["Normal", "BestEffort"]}, {CLASS: "Protected"},
                     f'{FIELD}"Protected" is not a class that GpuShare "a" allows (spec.clients.classes.allowed); '
                     "write Normal or BestEffort", id="a class that is off"),
        pytest.param({"protected": {"namespaces": ["web"]}}, {CLASS: "Protected"},
                     f'{FIELD}"Protected" is not for namespace "team" (spec.clients.classes.protected.namespaces of '
                     'GpuShare "a"); write Normal or BestEffort, or have the namespace added', id="a namespace"),
        pytest.param({"default": "Protected", "protected": {"namespaces": ["web"]}}, {},
                     'clients.classes.default of GpuShare "a": "Protected" is not for namespace "team" (spec.clients.'
                     'classes.protected.namespaces of GpuShare "a"); annotate the pod: gpushare.dev/class: Normal or '
                     "BestEffort, or have the namespace added", id="a default that is not for everybody"),
        pytest.param({}, {BESIDE: "20"},
                     f'{PART}"20" is for class BestEffort, and this client is Normal; remove it, or write '
                     "gpushare.dev/class: BestEffort", id="a part of a client that gives no way"),
        pytest.param({}, {CLASS: "BestEffort", BESIDE: "51"},
                     f'{PART}"51" is above the 50 percent that GpuShare "a" leaves best effort beside protected '
                     "clients (spec.clients.classes.bestEffort.threadsBesideProtected); write a whole number from 1 "
                     "to 50",
                     id="a larger part"),
        pytest.param({}, {CLASS: "BestEffort", BESIDE: "0"},
                     f'{PART}"0" is not a whole percent of the GPU\'s SMs; write a whole number from 1 to 50',
                     id="no part"),
    ],
)  # fmt: skip
def test_a_class_that_may_not_be_is_refused_by_field_and_remedy(
    classes: dict[str, Any] | None, annotations: dict[str, str], sentence: str
) -> None:
    with pytest.raises(GrantRefused) as refused:
        granted_class(share(classes), annotations, "team")
    assert str(refused.value) == sentence


@given(
    st.lists(st.sampled_from(ClientClass), min_size=1, unique=True),
    st.sets(st.sampled_from(["team", "web"])),
    st.dictionaries(st.sampled_from([CLASS, BESIDE]), st.sampled_from([*ClientClass, "5", "60", "x"])),
)
def test_whatever_is_written_nobody_gets_a_class_that_the_share_denies(
    allowed: list[ClientClass], namespaces: set[str], annotations: dict[str, str]
) -> None:
    classes = {"default": allowed[0], "allowed": allowed, "protected": {"namespaces": sorted(namespaces)}}
    try:
        granted = granted_class(share(classes), annotations, "team")
    except GrantRefused:
        return
    assert granted.client_class in allowed
    assert granted.client_class is not ClientClass.PROTECTED or not namespaces or "team" in namespaces
    assert granted.threads_beside_protected <= 50
    assert annotations.get(CLASS, granted.client_class) == granted.client_class
