"""The page on security shows the privileges that the chart renders and the operator gives to MPS pods."""

from gpushare.api.gpushare import GpuShare
from gpushare.controller.daemonset import daemon_set
from gpushare.controller.settings import OperatorSettings
from localcluster.paths import REPOSITORY
from tests.unit.chart.privileges import Object, table
from tests.unit.chart.rendered import needs_helm, workloads

pytestmark = needs_helm


def mps_pod() -> Object:
    spec = {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}}
    share = GpuShare.model_validate({"metadata": {"name": "a", "uid": "12345"}, "spec": spec})
    pod: Object = daemon_set(share, OperatorSettings("ns", "operator-0", "image"))["spec"]["template"]["spec"]
    return pod


def test_the_page_on_security_has_the_privileges_of_every_container() -> None:
    real, lean, simulated, leaving, page = (
        dict(workloads(variant)) for variant in ("default", "lean", "simulated", "everything", "page")
    )
    pods = {
        "operator": real["gpushare-operator"],
        "webhook": real["gpushare-webhook"],
        "agent": real["gpushare-agent"],
        "agent, `gpuAccess: RuntimeClass`": lean["gpushare-agent"],
        "MPS pod": mps_pod(),
        "uninstall, with `uninstall.shares: Delete`": leaving["gpushare-uninstall"],
        "page, with `ui.enabled`": page["gpushare-ui"],
        "`helm test`": real["gpushare-test"],
        "simulated driver": simulated["gpushare-simulated-driver"],
    }
    shown = ("operator", "webhook", "agent", "uninstall", "ui", "test", "simulated-driver")
    assert {f"gpushare-{name}" for name in shown} == {*real, *simulated, *leaving, *page}, (
        "a workload of the chart is not in the table"
    )
    rendered = "\n".join(table(pods))
    page = (REPOSITORY / "docs" / "threats.md").read_text()
    assert rendered in page, f"docs/threats.md should have\n{rendered}"
