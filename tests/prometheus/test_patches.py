"""Every line that `recommend` prints is run by a shell, with a real kubectl, against a real API server.

So the server's schema and its rules judge each patch. No controller runs: objects are what the test makes of them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.rules.recommend.advice import patched
from localcluster.paths import REPOSITORY
from tests.cluster.control_plane import ControlPlane, programs
from tests.prometheus.week import SHARES, gpu_node, shares

SECONDS = 300
SLOT = {"limits": {"gpushare.dev/short": "1"}}
POD = {"containers": [{"name": "app", "image": "app:1", "resources": SLOT}]}

Shell = Callable[[str], str]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Runs a line with kubectl and the kubeconfig of an API server that knows gpushare's kinds."""
    with ControlPlane(tmp_path / "plane").create().running() as plane:
        environment = os.environ | {"KUBECONFIG": str(plane.kubeconfig), "PATH": f"{programs()}:{os.environ['PATH']}"}

        def run(line: str) -> str:
            done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, timeout=SECONDS)
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
            return done.stdout

        run(f"kubectl apply -f {REPOSITORY}/crds && kubectl wait --for=condition=Established crd --all --timeout=120s")
        yield run


def create(shell: Shell, folder: Path, *objects: dict[str, Any], options: str = "") -> None:
    file = folder / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    shell(f"kubectl apply --server-side --field-manager=test -f {file} {options}")


def test_each_line_is_taken_and_does_what_it_says(shell: Shell, prometheus: str, tmp_path: Path) -> None:
    labels = {"app": "crash"}
    template = {"metadata": {"labels": labels}, "spec": POD}
    made = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "crash", "namespace": "ml"},
            "spec": {"selector": {"matchLabels": labels}, "template": template}}  # fmt: skip
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "ml"}}
    shell("kubectl create namespace ml")
    create(shell, tmp_path, *shares(), gpu_node(), account)
    create(shell, tmp_path, gpu_node(), options="--subresource=status")
    create(shell, tmp_path, made)
    uid = shell("kubectl get daemonset crash -n ml -o jsonpath={.metadata.uid}")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "crash", "uid": uid}
    metadata = {"name": "crash-b4x7z", "namespace": "ml", "ownerReferences": [owner | {"controller": True}]}
    create(shell, tmp_path, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": POD})

    program = f"{sys.executable} -m gpushare.kubectl.main recommend --prometheus={prometheus}"
    advice = json.loads(shell(f"{program} -o json"))["recommendations"]
    assert sorted(item["kind"] for item in advice) == [
        "a GPU of its own",
        "could be best effort",
        "fewer clients",
        "held without work",
        "memory granted and never used",
        "more clients",
        "threads that nobody could use",
    ]
    for item in advice:
        if item["command"]:
            shell(item["command"])

    for name, spec in SHARES.items():
        expected = GpuShare.model_validate({"metadata": {"name": name}, "spec": spec})
        for item in advice:
            if item["share"] == name and item["kind"] != "a GPU of its own" and item["patch"]:
                expected = patched(expected, item["patch"])
        now = GpuShare.model_validate_json(shell(f"kubectl get gpushare {name} -o json"))
        assert now.spec.clients == expected.spec.clients
    after = json.loads(shell("kubectl get daemonset crash -n ml -o json"))["spec"]["template"]["spec"]["containers"][0]
    assert after["resources"] == {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    assert after["image"] == "app:1"
    again = json.loads(shell(f"{program} -o json"))
    left = {(item["share"], item["kind"]) for item in again["recommendations"]}
    assert ("roomy", "memory granted and never used") not in left, "what was changed is not recommended again"
