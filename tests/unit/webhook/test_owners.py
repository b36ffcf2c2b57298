"""Owners: who applies what makes pods is told what its pods will be told, and is never refused."""

from typing import Any

import pytest

from gpushare.webhook.bounds import MOST_CONTAINERS
from gpushare.webhook.review import Admitted, Answer, Denied
from gpushare.webhook.serving.decisions import Reviews
from gpushare.webhook.warnings import MOST_WARNINGS
from tests.unit.webhook.reviews import MemorySources, container

Body = dict[str, Any]


def template(*containers: Body, **metadata: Any) -> Body:
    return {"metadata": metadata, "spec": {"containers": list(containers) or [container()]}}


def owner(kind: str, made: Body) -> Body:
    spec: Body = {"template": made}
    return {"metadata": {"name": "web"}, "spec": {"jobTemplate": {"spec": spec}} if kind == "CronJob" else spec}


async def reviewed(endpoint: str, kind: str, body: Body, operation: str = "CREATE") -> Answer:
    request = {"operation": operation, "kind": {"kind": kind}, "namespace": "shop", "object": body, "oldObject": body}
    return await dict(Reviews(MemorySources(), "gpushare-system").all())[endpoint](request)


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"])
async def test_an_owner_is_told_the_very_sentence_that_its_pods_will_get(kind: str, operation: str) -> None:
    made = template(container("gpushare.dev/inferense"))
    answer = await reviewed("validate-owners", kind, owner(kind, made), operation)
    refused = await reviewed("mutate-pods", "Pod", made)
    assert isinstance(refused, Denied)
    assert answer == Admitted(warnings=(f"pods of this {kind} will be refused: {refused.message()}",))


async def test_an_owner_gets_the_warnings_of_its_pods() -> None:
    made = template(annotations={"gpushare.dev/thread": "20"})
    answer, of_pod = (
        await reviewed("validate-owners", "Job", owner("Job", made)),
        await reviewed("mutate-pods", "", made),
    )
    assert isinstance(of_pod, Admitted)
    assert of_pod.changes
    assert answer == Admitted(warnings=of_pod.warnings)
    assert of_pod.warnings


async def test_an_owner_of_pods_that_are_right_is_told_nothing() -> None:
    assert await reviewed("validate-owners", "Deployment", owner("Deployment", template())) == Admitted()


async def test_each_problem_is_a_warning_and_of_many_the_first_are_given() -> None:
    several = template(*(container(f"gpushare.dev/none-{number}") for number in range(MOST_WARNINGS + 1)))
    answer = await reviewed("validate-owners", "Job", owner("Job", several))
    assert isinstance(answer, Admitted)
    assert len(answer.warnings) == MOST_WARNINGS
    assert answer.warnings[1].startswith("pods of this Job will be refused: spec.containers[1].resources.limits[")


async def test_an_owner_of_too_large_a_template_is_admitted() -> None:
    large = template(*[container()] * (MOST_CONTAINERS + 1))
    answer = await reviewed("validate-owners", "Job", owner("Job", large))
    assert isinstance(answer, Admitted)
    (warning,) = answer.warnings
    assert f"{MOST_CONTAINERS + 1} containers and init containers" in warning


@pytest.mark.parametrize("body", [{}, {"spec": {}}, {"spec": None}, {"spec": {"template": None}}])
async def test_an_owner_without_a_template_is_admitted(body: Body) -> None:
    assert await reviewed("validate-owners", "ReplicationController", body) == Admitted()


async def test_a_deletion_is_not_judged() -> None:
    assert await reviewed("validate-owners", "Job", owner("Job", template(container("x"))), "DELETE") == Admitted()
