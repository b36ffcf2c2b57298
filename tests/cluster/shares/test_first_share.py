"""The README's first share and pod, and the first claim of its page, literally."""

import json
import os
import re
import subprocess

from localcluster.demo.pods import NAMESPACE as DEMO
from localcluster.demo.pods import demo_pods
from localcluster.paths import REPOSITORY
from localcluster.stack import prepare_namespace
from tests.cluster.harness import NODE, Harness, Share

EXAMPLES = REPOSITORY / "examples"


def test_the_readmes_pod_runs_on_its_share_and_has_what_it_was_granted(harness: Harness) -> None:
    harness.kubectl("label", "node", NODE, "pool=gpu", "--overwrite")
    share = Share(harness, "inference")
    with harness.namespace() as tenant:
        try:
            harness.kubectl("apply", "-f", str(EXAMPLES / "inference.yaml"))
            share.wait_ready()
            assert "True    Ready" in harness.kubectl("get", "gpushares"), "the reason stands beside it"
            tenant.kubectl("apply", "-f", str(EXAMPLES / "pod.yaml"))
            tenant.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/app", "--timeout=120s", seconds=130)
            said = [json.loads(line) for line in tenant.kubectl.logs("app").splitlines() if line.startswith("{")]
            assert [line["problems"] for line in said if line["event"] == "limits"] == [[]]
        finally:
            tenant.delete_pods()
            share.delete()


def test_the_first_claim_of_its_page_runs_as_it_is_written(harness: Harness) -> None:
    """Also beside the demo's clients, which `make demo KEEP=1` leaves on both GPUs."""
    page = (REPOSITORY / "docs" / "resource-claims.md").read_text()
    match = re.search(r"## A first claim.*?```sh\n(.*?)```", page, re.DOTALL)
    assert match is not None
    harness.kubectl("label", "node", NODE, "pool=gpu", "--overwrite")
    inference, mixed = Share(harness, "inference"), Share(harness, "mixed")
    try:
        harness.kubectl("apply", "-f", str(EXAMPLES / "inference.yaml"))
        inference.wait_ready(gpus=2)
        prepare_namespace(harness.kubectl, DEMO, "restricted")
        clients = demo_pods(harness.stack.workload_image, "inference")[1:3]
        harness.kubectl.within(DEMO).create(*clients)
        names = [f"pod/{client['metadata']['name']}" for client in clients]
        harness.kubectl.within(DEMO)("wait", "--for=condition=Ready", *names, "--timeout=60s", seconds=70)
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", match[1]],
            cwd=REPOSITORY, env=os.environ | harness.stack.environment, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        (limits,) = [line for line in said if line["event"] == "limits"]
        assert (limits["problems"], limits["granted"]["threads"], limits["granted"]["memory"]) == ([], 10, 8 << 30)
    finally:
        harness.kubectl.delete("namespace", DEMO)
        harness.kubectl.delete("pod", "small", "--namespace=default")
        mixed.delete()
        inference.delete()
