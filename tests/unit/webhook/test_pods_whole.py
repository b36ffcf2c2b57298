"""Pods that ask for whole GPUs under a share's own name: nothing is added to them, and little can be wrong."""

from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.webhook.pods import admit_pod
from gpushare.webhook.review import Admitted
from gpushare.webhook.shares import validate_share
from tests.unit.webhook.test_pods import ENVIRONMENT, admitted, container, data, environment, pod, refused, toleration
from tests.unit.webhook.test_pods import share as shared

FOUR = {"gpushare.dev/training": "4"}


def training(**spec: Any) -> GpuShare:
    return GpuShare.model_validate({"metadata": {"name": "training"}, "spec": {"wholeGpus": {}, **spec}})


STATE = data(training(), shared())


def test_a_container_with_whole_gpus_is_left_as_it_is() -> None:
    mine = {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/tmp/mps"}
    body = pod(container(FOUR, env=[mine]))
    patched = admitted(body, STATE)
    assert patched["spec"].pop("tolerations") == [toleration(), toleration(key="sku")]
    assert patched == body, "it may run an MPS daemon of its own"


def test_a_client_beside_it_gets_what_clients_get() -> None:
    patched = admitted(pod(container(FOUR, name="train"), container()), STATE)
    assert "env" not in patched["spec"]["containers"][0]
    assert environment(patched, 1) == ENVIRONMENT


def test_the_scheduler_s_count_is_all_that_bounds_it() -> None:
    body = pod(container(FOUR | {"nvidia.com/gpu": "1"}))
    assert isinstance(admit_pod(body, STATE), Admitted), "no limits that the other GPU would bypass"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (pod(container(FOUR | {"gpushare.dev/inference": "1"})), "a container reaches one GPU of one share"),
        (pod(container(None), initContainers=[container(FOUR)]), "cannot hold a whole GPU"),
        (pod({"name": "app", "resources": {"requests": FOUR}}), "is missing"),
    ],
)
def test_what_kubernetes_or_mps_cannot_keep_apart_is_refused(body: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in refused(body, STATE))


def test_a_share_of_whole_gpus_may_be_for_some_namespaces() -> None:
    bound = data(training(allowedNamespaces={"matchLabels": {"team": "ml"}}))
    (problem,) = refused(pod(container(FOUR)), bound)
    assert 'namespace "shop" may not use GpuShare "training"' in problem


def test_the_webhook_checks_a_share_of_whole_gpus() -> None:
    def answer(**spec: Any) -> Any:
        return validate_share({"metadata": {"name": "training"}, "spec": spec}, None)

    assert answer(wholeGpus={"resourceName": "nvidia.com/gpu"}) == Admitted()
    (problem,) = answer(wholeGpus={"resourceName": "gpushare.dev/other"}).problems
    assert "gpushare.dev/other" in problem
    assert "must be outside of gpushare.dev" in problem
    (problem,) = answer(gpus={"perNode": 1}).problems
    assert "spec.clients for shared GPUs or spec.wholeGpus for whole ones" in problem
