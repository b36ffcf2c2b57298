"""An agent without `privileged`: NVIDIA's runtime gives it the GPUs, and it does all that it does otherwise."""

from localcluster.kubectl import Object
from measurements.gpu.stack import bring
from measurements.gpu.stack.suite import Findings
from tests.cluster.harness import Harness
from tests.cluster.rights.runtime_class import open_control, unprivileged_agent

SHARE, THREADS, MEMORY = "lean", 25, "8Gi"
KILL = 1 << 5
"""The bit of capabilities(7). The chart adds no other with computeMode=Leave."""


def measure(harness: Harness, findings: Findings) -> None:
    with unprivileged_agent(harness, bring.upgrade, findings.simulated):
        open_control(harness)
        (agent,) = harness.pods_of("agent")
        _privileges(harness, agent, findings)
        with harness.share(SHARE, per_gpu=2, threads={"default": THREADS}, memory={"default": MEMORY}) as share:
            share.wait_capacity(2)
            gpus = harness.gpu_node()["status"]["gpus"]
            findings.figures["gpus"] = gpus
            findings.expect("it reads the GPU by NVML", gpus[0]["product"] == findings.truth["product"])
            with harness.namespace() as tenant:
                tenant.start(tenant.pod("client", SHARE, "limits"))
                line = tenant.wait_event("client", "limits", 60)
                findings.figures["client"] = line
                findings.expect("a client finds every limit in force", line["problems"] == [])
                findings.expect("it ends well", tenant.wait_ended("client", 60) == "Succeeded")
            findings.expect("the share is Ready", share.condition().get("status") == "True")


def _privileges(harness: Harness, agent: Object, findings: Findings) -> None:
    container = agent["spec"]["containers"][0]["securityContext"]
    findings.figures["security_context"] = container
    findings.expect("it is not privileged", not container.get("privileged"))
    seen = harness.system("exec", agent["metadata"]["name"], "--", "/opt/gpushare/bin/python3", "-c", _STATUS)
    findings.figures["capabilities"] = seen.strip()
    findings.expect("KILL is its only capability", int(seen, 16) == KILL)


_STATUS = "print(next(it.split()[1] for it in open('/proc/self/status') if it.startswith('CapBnd')))"
