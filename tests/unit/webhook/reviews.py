"""What the largest objects cost the webhook: `python -m tests.unit.webhook.reviews [--out FILE]`.

Every case is an object that a tenant may send to the API server, as large as that takes it or as large as the webhook
reads it, made so that it costs much. A review is measured from the text that came to the text of the answer, as CPU
time of its thread, which other work on the machine changes little; of several rounds, the least. What TLS and HTTP
take for the same bytes is not in it.
"""

import argparse
import asyncio
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Collection
from typing import Any

from gpushare.api.gpushare import GpuShare
from gpushare.webhook.review import Admitted
from gpushare.webhook.serving import text
from gpushare.webhook.serving.app import judged
from gpushare.webhook.serving.decisions import Reviews
from measurements.scale import results

Body = dict[str, Any]
SLOT = "gpushare.dev/inference"
CLASS = "claimed.gpushare.dev"
MEBIBYTE = 1024 * 1024


class MemorySources:
    """A cluster with a hundred shares, and claims of any name."""

    def __init__(self) -> None:
        clients = {"perGpu": 8, "memory": {"default": "8Gi"}}
        names = ["inference", "claimed", *(f"share-{number}" for number in range(98))]
        delivery = {"claimed": "ResourceClaim"}
        self._shares = {
            name: GpuShare.model_validate(
                {
                    "metadata": {"name": name},
                    "spec": {"clients": clients, "delivery": delivery.get(name, "DevicePlugin")},
                }
            )
            for name in names
        }

    async def shares(self, names: Collection[str]) -> dict[str, GpuShare]:
        return {name: self._shares[name] for name in names if name in self._shares}

    def share_names(self) -> list[str]:
        return list(self._shares)

    async def claims(self, _: str, pod_claims: Collection[Any]) -> dict[str, Any]:
        requests = [{"name": f"r{number}", "exactly": {"deviceClassName": CLASS}} for number in range(32)]
        return {str(entry.get("name")): {"devices": {"requests": requests}} for entry in pod_claims}

    async def silence(self, _: str) -> str:
        return ""

    async def namespace_labels(self, _: str) -> dict[str, str]:
        return {}


def pod(containers: list[Body], **spec: Any) -> Body:
    return {"metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}


def container(name: str = SLOT, **fields: Any) -> Body:
    return {"name": "c", "image": "i", "resources": {"limits": {name: "1"}, "requests": {name: "1"}}, **fields}


def claim(*requests: Body, **devices: Any) -> Body:
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": list(requests), **devices}}}


def share(**spec: Any) -> Body:
    clients = {"perGpu": 8, "memory": {"default": "8Gi"}}
    return {"metadata": {"name": "s"}, "spec": {"clients": clients, **spec}}


def _environment(count: int, prefix: str) -> list[Body]:
    return [{"name": f"{prefix}{number}", "value": "v"} for number in range(count)]


CASES: dict[str, tuple[str, Callable[[], Body]]] = {
    "pod: usual": ("pods", lambda: pod([container(env=_environment(20, "A"))])),
    "pod: 3,000 containers with a slot": ("pods", lambda: pod([container() for _ in range(3000)])),
    "pod: 256 containers with a slot": ("pods", lambda: pod([container() for _ in range(256)])),
    "pod: 256 containers, each of an unknown share": ("pods", lambda: pod([container(f"{SLOT}e")] * 256)),
    "pod: 32 unknown shares": ("pods", lambda: pod([container(f"gpushare.dev/inferenc-{n}") for n in range(32)])),
    "pod: 30,000 containers that ask for nothing": ("pods", lambda: pod([{"name": "c"}] * 30_000)),
    "pod: 256 containers, 90 reserved variables each": (
        "pods",
        lambda: pod([container(env=_environment(90, "GPUSHARE_")) for _ in range(256)]),
    ),
    "pod: 45,000 variables": ("pods", lambda: pod([container(env=_environment(45_000, "A"))])),
    "pod: 45,000 reserved variables": ("pods", lambda: pod([container(env=_environment(45_000, "GPUSHARE_"))])),
    "pod: 150,000 ports": ("pods", lambda: pod([container(ports=[{"containerPort": 1}] * 150_000)])),
    "pod: 49,000 ports": ("pods", lambda: pod([container(ports=[{"containerPort": 1}] * 49_000)])),
    "pod: 90,000 slots": (
        "pods",
        lambda: pod([container(resources={"limits": {f"gpushare.dev/s{n}": "1" for n in range(90_000)}})]),
    ),
    "pod: 90,000 resources beside a slot": (
        "pods",
        lambda: pod([container(resources={"limits": {SLOT: "1", **{f"nvidia.com/gpu{n}": 1 for n in range(90_000)}}})]),
    ),
    "pod: 40,000 mounts within ours": (
        "pods",
        lambda: pod([container(volumeMounts=[{"name": "x", "mountPath": "/run/gpushare/mps/../mps"}] * 40_000)]),
    ),
    "pod: a path of 2.9 MiB": (
        "pods",
        lambda: pod([container(volumeMounts=[{"name": "x", "mountPath": "/.." * (2900 * 1024 // 3)}])]),
    ),
    "pod: a slot's name of 2.9 MiB": ("pods", lambda: pod([container(f"gpushare.dev/{'i' * 2900 * 1024}")])),
    "pod: an annotation of 2.9 MiB": (
        "pods",
        lambda: {**pod([container()]), "metadata": {"annotations": {"gpushare.dev/memory": "9" * 2900 * 1024}}},
    ),
    "pod: 20,000 unknown annotations of ours": (
        "pods",
        lambda: {
            **pod([container()]),
            "metadata": {"annotations": {f"gpushare.dev/{n}{'thread' * 18}": "1" for n in range(20_000)}},
        },
    ),
    "pod: 256 containers, each with a variable that hides its GPU": (
        "pods",
        lambda: pod([container(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "1"}]) for _ in range(256)]),
    ),
    "pod: 40,000 volumes of our name": (
        "pods",
        lambda: pod([container()], volumes=[{"name": "gpushare-mps-log"}] * 40_000),
    ),
    "pod: 64 claims, each used by 256 containers": (
        "pods",
        lambda: pod(
            [container(resources={"claims": [{"name": f"c{n}"} for n in range(64)]})] * 256,
            resourceClaims=[{"name": f"c{n}", "resourceClaimName": f"c{n}"} for n in range(64)],
        ),
    ),
    "pod: 30,000 claims": ("pods", lambda: pod([container()], resourceClaims=[{"resourceClaimName": "c"}] * 30_000)),
    "pod: 100,000 empty lists": ("pods", lambda: pod([container()], x=[[]] * 49_000)),
    "pod: 3 MiB of empty lists": ("pods", lambda: pod([container()], x=[[]] * 780_000)),
    "pod: 20 MiB": ("pods", lambda: pod([container(args=["a" * 20 * MEBIBYTE])])),
    "pod: 2.9 MiB of text": ("pods", lambda: pod([container(args=["a" * 2900 * 1024])])),
    "pod: 2.9 MiB of escapes": ("pods", lambda: pod([container(args=["é" * (2900 * 1024 // 6)])])),
    "pod: 2.9 MiB of text in a variable's value": (
        "pods",
        lambda: pod([container(env=[{"name": "GPUSHARE_X", "value": "\n" * (2900 * 1024 // 2)}])]),
    ),
    "claim: usual": ("claims", lambda: claim({"name": "r", "exactly": {"deviceClassName": CLASS}})),
    "claim: 30,000 requests": (
        "claims",
        lambda: claim(*[{"name": "r", "exactly": {"deviceClassName": CLASS}}] * 30_000),
    ),
    "claim: 32 requests, 256 alternatives of unknown shares": (
        "claims",
        lambda: claim(*[{"firstAvailable": [{"deviceClassName": f"claime{m}.gpushare.dev"} for m in range(8)]}] * 32),
    ),
    "claim: 256 alternatives with 100 capacities each": (
        "claims",
        lambda: claim(
            *[
                {
                    "firstAvailable": [
                        {"deviceClassName": CLASS, "capacity": {"requests": {f"c{n}": "1e18" for n in range(100)}}}
                    ]
                    * 8
                }
            ]
            * 32
        ),
    ),
    "claim: 90,000 capacities": (
        "claims",
        lambda: claim(
            {"exactly": {"deviceClassName": CLASS, "capacity": {"requests": {f"c{n}": "1e18" for n in range(90_000)}}}}
        ),
    ),
    "claim: a quantity of 2.9 MiB": (
        "claims",
        lambda: claim(
            {"exactly": {"deviceClassName": CLASS, "capacity": {"requests": {"threads": "9" * 2900 * 1024}}}}
        ),
    ),
    "claim: a quantity of 1e999999999": (
        "claims",
        lambda: claim({"exactly": {"deviceClassName": CLASS, "capacity": {"requests": {"threads": "1e999999999"}}}}),
    ),
    "claim: 30,000 tolerations": (
        "claims",
        lambda: claim({"exactly": {"deviceClassName": CLASS, "tolerations": [{"operator": "Exists"}] * 30_000}}),
    ),
    "claim: 30,000 configurations": (
        "claims",
        lambda: claim(
            {"exactly": {"deviceClassName": CLASS}}, config=[{"opaque": {"driver": "gpushare.dev"}}] * 20_000
        ),
    ),
    "claim: a class' name of 2.9 MiB": (
        "claims",
        lambda: claim({"exactly": {"deviceClassName": "a." * (2900 * 512) + "gpushare.dev"}}),
    ),
    "share: usual": ("gpushares", share),
    "share: 90,000 products": ("gpushares", lambda: share(gpus={"products": [""] * 90_000})),
    "share: 90,000 labels": (
        "gpushares",
        lambda: share(nodeSelector={"matchLabels": {f"-{n}": "-" for n in range(90_000)}}),
    ),
    "share: 30,000 expressions": (
        "gpushares",
        lambda: share(nodeSelector={"matchExpressions": [{"key": "-", "operator": "Bad"}] * 30_000}),
    ),
    "share: 32 expressions of 64 bad values": (
        "gpushares",
        lambda: share(nodeSelector={"matchExpressions": [{"key": "a", "operator": "In", "values": ["-"] * 64}] * 32}),
    ),
    "share: 30,000 sizes": ("gpushares", lambda: share(sizes=[{"name": "S"}] * 30_000)),
    "share: memory of 2.9 MiB": (
        "gpushares",
        lambda: share(clients={"perGpu": 8, "memory": {"default": "9" * 2900 * 1024}}),
    ),
    "share: 49,000 unknown fields": ("gpushares", lambda: share(**{f"f{n}": [] for n in range(49_000)})),
}
"""Cases by name: the endpoint's object, and how to make it."""


def review(body: Body) -> bytes:
    """A review as an API server writes it: the uid first."""
    request = {"uid": "u-1", "kind": {"kind": "Object"}, "namespace": "shop", "operation": "CREATE", "object": body}
    whole = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(whole, separators=(",", ":")).encode()


def answered(endpoint: str, body: bytes) -> tuple[str, int]:
    """(the result, the answer's bytes) of a review, as the server gives it."""
    if len(body) > text.MOST_BYTES or text.values(body) > text.MOST_VALUES:
        return "too large", len(text.too_large("").message()) if text.uid_of(body) else 0
    decisions = dict(Reviews(_SOURCES, "gpushare-system").all())
    response, answer = asyncio.run(judged(body, decisions[endpoint]))
    assert response is not None
    return ("admitted" if isinstance(answer, Admitted) else "refused"), len(response)


_SOURCES = MemorySources()


def measured(kind: str, made: Body, rounds: int) -> dict[str, Any]:
    body = review(made)
    asked = {f"validate-{kind}": body}
    if kind != "gpushares":
        asked = {f"mutate-{kind}": body, **asked}
    if kind == "pods":
        asked["owners"] = review({"spec": {"template": made}})
    figures: dict[str, Any] = {"bytes": len(body), "values": text.values(body)}
    for name, body in asked.items():
        endpoint = "validate-owners" if name == "owners" else name
        spent = []
        for _ in range(rounds):
            began = time.thread_time()
            result, size = answered(endpoint, body)
            spent.append((time.thread_time() - began) * 1000)
        tracemalloc.start()
        answered(endpoint, body)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        figures[name.partition("-")[0]] = {
            "result": result,
            "cpuMilliseconds": round(min(spent), 1),
            "medianCpuMilliseconds": round(statistics.median(spent), 1),
            "answerBytes": size,
            "memoryMiB": round(peak / MEBIBYTE, 1),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    results.add_out(parser)
    args = parser.parse_args()
    cases = {}
    for name, (kind, make) in CASES.items():
        cases[name] = measured(kind, make(), args.rounds)
        print(name, json.dumps(cases[name]), flush=True)
    result = {"rounds": args.rounds, "environment": results.machine(), "cases": cases}
    results.write(result, args.out)


if __name__ == "__main__":
    main()
