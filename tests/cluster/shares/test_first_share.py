"""The README's first share and pod, from its files as they are."""

import json

from localcluster.paths import REPOSITORY
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
