"""`python -m localcluster.demo [--keep]`: exit code 0 if the limits held and all neighbours went on."""

import argparse
import os
import sys
import time
from collections.abc import Mapping

from rich.console import Console

from localcluster.cluster import cluster
from localcluster.demo.pods import NAMESPACE as DEMO_NAMESPACE
from localcluster.demo.run import SHARE, Demo, write_summary
from localcluster.demo.view import console
from localcluster.errors import LocalClusterError
from localcluster.kubectl import CommandError
from localcluster.paths import REPOSITORY
from localcluster.stack import NAMESPACE, RELEASE, Stack, embedded, own

CLUSTER = "demo"
SUMMARY = REPOSITORY / "build" / "demo.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up; `make down` ends it")
    arguments = parser.parse_args()
    began, out, stack = time.monotonic(), console(), None
    try:
        stack = users_cluster(os.environ) if os.environ.get("KUBECONFIG") else embedded(CLUSTER)
        if stack.embedded is None:
            out.print(
                f"the demo takes about 2 min. It installs the chart in namespace {NAMESPACE}, which stays, and makes "
                f"GpuShare {SHARE} and 8 pods in namespace {DEMO_NAMESPACE}, which go",
                highlight=False,
            )
        demo = Demo(stack, out)
        try:
            demo.run()
        finally:
            demo.figures["seconds"] = round(time.monotonic() - began, 1)
            write_summary(demo.figures, SUMMARY)
        _summarise(demo, out)
        return 0
    except LocalClusterError as error:
        out.print(f"the demo failed: {error}", style="red", highlight=False)
        return 1
    finally:
        _leave(arguments.keep, stack, out)


def users_cluster(environment: Mapping[str, str]) -> Stack:
    """The cluster of KUBECONFIG. Raises LocalClusterError where the demo would change, and at its end delete, a share
    of the user's."""
    stack = own(environment)
    has_shares = stack.kubectl.find("customresourcedefinition", "gpushares.gpushare.dev")
    if has_shares and stack.kubectl.find("gpushare", SHARE):
        raise LocalClusterError(
            f"GpuShare {SHARE!r} exists on the cluster of KUBECONFIG, and the demo makes one of this name, which it "
            f"deletes at its end: delete yours first (kubectl delete gpushare {SHARE}), or unset KUBECONFIG for a "
            "cluster of the demo's own"
        )
    return stack


def _summarise(demo: Demo, out: Console) -> None:
    seen = demo.figures
    kind = "simulated GPUs (no hardware was used)" if seen["simulated"] else "real GPUs"
    out.print(
        f"[bold green]✔[/] {seen['limits_hold']} of {len(seen['clients'])} clients have exactly the limits they were "
        f"granted; {seen['neighbours_going_on']} of {seen['neighbours']} neighbours went on after the deletion, "
        f"{seen['results_checked']:,} results checked, 0 wrong; {kind}; {seen['seconds']} s. "
        f"Summary: {SUMMARY.relative_to(REPOSITORY)}"
    )


def _leave(keep: bool, stack: Stack | None, out: Console) -> None:
    """Ends an embedded cluster. On the user's own cluster only the demo's pods and share are removed."""
    if stack is None:
        return
    if keep:
        if stack.embedded:
            out.print(f'the cluster is up: eval "$(python3 -m localcluster env --name {CLUSTER})"; `make down` ends it')
    elif stack.embedded:
        cluster.down(CLUSTER)
    else:
        stack.kubectl.delete("namespace", DEMO_NAMESPACE)
        try:
            stack.kubectl.delete("gpushare", SHARE)
        except CommandError:
            out.print(f"GpuShare {SHARE} is being deleted: it goes once the pods that are not the demo's have ended")
        out.print(f"gpushare stays installed: helm uninstall {RELEASE} --namespace {NAMESPACE} removes it")


if __name__ == "__main__":
    sys.exit(main())
