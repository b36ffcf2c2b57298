"""DeviceClasses and templates: made where they belong, followed when something changes, and gone with their share."""

from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.controller.claims.differences import claim_writes
from gpushare.controller.claims.objects import device_classes, share_templates
from gpushare.controller.settings import OperatorSettings
from gpushare.kube.cache.store import Key, key_of
from gpushare.kube.client import CLAIM_TEMPLATES, DEVICE_CLASSES, NAMESPACES, Object, Resource

SMALL = {"name": "small", "threads": 10, "memory": "8Gi"}


class Claims:
    """What there is, as the reflectors would show it; `carry_out` is the API server."""

    def __init__(self) -> None:
        self.known = True
        self.objects: dict[Resource, dict[Key, Object]] = {DEVICE_CLASSES: {}, CLAIM_TEMPLATES: {}, NAMESPACES: {}}

    def all(self, resource: Resource) -> dict[Key, Object]:
        return self.objects[resource]

    def namespace(self, name: str, **metadata: Any) -> None:
        self.objects[NAMESPACES]["", name] = {"metadata": {"name": name, **metadata}}

    def carry_out(self, writes: list[Any]) -> None:
        for write in sorted(writes, key=lambda write: write.stage):
            key = (write.namespace or "", write.name)
            if write.verb == "delete":
                assert self.objects[write.resource].pop(key)["metadata"]["uid"] == write.uid
            else:
                assert key == key_of(write.body)
                stored = {**write.body, "metadata": {**write.body["metadata"], "uid": "u"}}
                self.objects[write.resource][key] = stored

    def names(self, resource: Resource) -> list[str]:
        return sorted("/".join(filter(None, key)) for key in self.objects[resource])


def share(name: str = "inference", uid: str = "u1", deleting: bool = False, **spec: Any) -> GpuShare:
    clients = {"perGpu": 8, "threads": {"default": 25, "max": 50}, "memory": {"default": "16Gi"}}
    metadata = {"name": name, "uid": uid, "deletionTimestamp": "2026-01-01T00:00:00Z" if deleting else None}
    wish = {"clients": clients, "delivery": "ResourceClaim", "sizes": [SMALL], **spec}
    return GpuShare.model_validate({"metadata": metadata, "spec": wish})


@pytest.fixture
def claims() -> Claims:
    claims = Claims()
    claims.namespace("ml", labels={"team": "ml"})
    claims.namespace("web")
    for name in ("kube-system", "gpushare-system"):
        claims.namespace(name)
    claims.namespace("old", deletionTimestamp="2026-01-01T00:00:00Z")
    return claims


def settle(claims: Claims, settings: OperatorSettings, *shares: GpuShare) -> int:
    """Rounds until nothing is written."""
    for rounds in range(10):
        writes = claim_writes(shares, claims, settings)  # type: ignore[arg-type]
        if not writes:
            return rounds
        claims.carry_out(writes)
    pytest.fail("never at rest")


def test_a_share_gets_classes_and_templates_in_every_namespace_of_users(
    claims: Claims, settings: OperatorSettings
) -> None:
    assert settle(claims, settings, share()) == 1
    assert claims.names(DEVICE_CLASSES) == ["inference.gpushare.dev", "small.inference.gpushare.dev"]
    assert claims.names(CLAIM_TEMPLATES) == ["ml/small.inference", "web/small.inference"]


def test_only_the_shares_own_class_stands_for_the_extended_resource() -> None:
    own, size = device_classes(share())
    assert own["spec"]["extendedResourceName"] == "gpushare.dev/inference"
    assert "extendedResourceName" not in size["spec"]
    (selector,) = own["spec"]["selectors"]
    assert selector["cel"]["expression"] == (
        'device.driver == "gpushare.dev" && device.attributes["gpushare.dev"].?share.orValue("") == "inference"'
    )


def test_a_template_asks_for_exactly_its_size() -> None:
    (template,) = share_templates(share())
    assert template["spec"]["spec"]["devices"]["requests"] == [
        {
            "name": "gpu",
            "exactly": {
                "deviceClassName": "small.inference.gpushare.dev",
                "allocationMode": "ExactCount",
                "count": 1,
                "capacity": {"requests": {"threads": "10", "memory": "8Gi"}},
            },
        }
    ]


def test_templates_follow_the_labels_of_namespaces(claims: Claims, settings: OperatorSettings) -> None:
    chosen = share(allowedNamespaces={"matchLabels": {"team": "ml"}})
    settle(claims, settings, chosen)
    assert claims.names(CLAIM_TEMPLATES) == ["ml/small.inference"]
    claims.namespace("ml")
    claims.namespace("web", labels={"team": "ml"})
    settle(claims, settings, chosen)
    assert claims.names(CLAIM_TEMPLATES) == ["web/small.inference"]


def test_a_size_that_changes_or_goes_takes_its_template_along(claims: Claims, settings: OperatorSettings) -> None:
    settle(claims, settings, share())
    settle(claims, settings, share(sizes=[SMALL | {"threads": 20}]))
    template = claims.objects[CLAIM_TEMPLATES]["ml", "small.inference"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"]["threads"] == "20"
    settle(claims, settings, share(sizes=[]))
    assert claims.names(CLAIM_TEMPLATES) == []
    assert claims.names(DEVICE_CLASSES) == ["inference.gpushare.dev"]


def test_what_somebody_changes_or_takes_away_comes_back(claims: Claims, settings: OperatorSettings) -> None:
    settle(claims, settings, share())
    claims.objects[DEVICE_CLASSES]["", "inference.gpushare.dev"]["spec"] = {"selectors": []}
    del claims.objects[CLAIM_TEMPLATES]["ml", "small.inference"]
    settle(claims, settings, share())
    assert claims.objects[DEVICE_CLASSES]["", "inference.gpushare.dev"]["spec"]["selectors"]
    assert ("ml", "small.inference") in claims.objects[CLAIM_TEMPLATES]


@pytest.mark.parametrize(
    "left", [[share(deleting=True)], [], [share(delivery="DevicePlugin", sizes=[])]], ids=["deleting", "gone", "other"]
)
def test_everything_goes_with_the_share(claims: Claims, settings: OperatorSettings, left: list[GpuShare]) -> None:
    settle(claims, settings, share())
    settle(claims, settings, *left)
    assert claims.names(DEVICE_CLASSES) == claims.names(CLAIM_TEMPLATES) == []


def test_a_share_made_again_by_the_same_name_gets_its_own(claims: Claims, settings: OperatorSettings) -> None:
    settle(claims, settings, share(uid="u1"))
    settle(claims, settings, share(uid="u2"))
    (owner,) = claims.objects[DEVICE_CLASSES]["", "inference.gpushare.dev"]["metadata"]["ownerReferences"]
    assert owner["uid"] == "u2"


def test_nothing_is_written_while_it_is_unknown_what_there_is(claims: Claims, settings: OperatorSettings) -> None:
    claims.known = False
    assert claim_writes([share()], claims, settings) == []  # type: ignore[arg-type]


def test_every_namespace_is_wanted_in_one_plan(claims: Claims, settings: OperatorSettings) -> None:
    for number in range(450):
        claims.namespace(f"n{number}")
    assert settle(claims, settings, share()) == 1
    assert len(claims.names(CLAIM_TEMPLATES)) == 452
