"""Memory above what is reserved: who borrows is told, and goes with notice when another asks for what is reserved.

A neighbour checks its results through all of it.
"""

import sys
from pathlib import Path
from typing import Any

from localcluster.kubectl import Object
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.clients import borrower
from tests.cluster.harness import Harness, Tenant, wait_until

SHARE, PER_GPU = "lends", 3
RESERVED, LIMIT, BORROWED, ASKED = 0.28, 0.84, 0.78, 0.26
"""Parts of the GPU's memory: the two last do not fit together, and each is within what its client may use."""
GRACE_SECONDS = 6
TERMINATED = 810
NEIGHBOUR = "4Gi"
ANNOTATION = "gpushare.dev/memory-limit"
PROGRAM = Path(borrower.__file__).read_text()


def measure(harness: Harness, findings: Findings) -> None:
    total = findings.truth["memory_mib"]
    mib = {
        name: int(part * total)
        for name, part in (("reserved", RESERVED), ("limit", LIMIT), ("borrowed", BORROWED), ("asked", ASKED))
    }
    findings.figures["mib"] = {"total": total, **mib}
    limits = {
        "max": f"{mib['limit']}Mi",
        "overcommitPercent": 300,
        "gracePeriod": f"{GRACE_SECONDS}s",
        "whenShort": "Terminate",
    }
    memory = {"default": f"{mib['reserved']}Mi", "limits": limits}
    with harness.share(SHARE, per_node=1, per_gpu=PER_GPU, memory=memory) as share, harness.namespace() as tenant:
        share.wait_capacity(PER_GPU)
        # Little is reserved for it, so that the borrower leaves that free.
        [neighbour] = tenant.neighbours(SHARE, 1, annotations={"gpushare.dev/memory": NEIGHBOUR})
        with findings.phase("a limit is each client's own"):
            _own_limits(tenant, mib, findings)
        with findings.phase("a borrower is told"):
            _told(harness, tenant, mib, findings)
        with findings.phase("it goes when another asks"):
            findings.figures["short"] = _short(tenant, mib, findings)
        tenant.go_on([neighbour])
        findings.figures["neighbour_checks"] = tenant.checks(neighbour)
        findings.expect("the neighbour went on", parts.alive(tenant, [neighbour]) == [neighbour])


def _pod(tenant: Tenant, name: str, *steps: int, **options: Any) -> Object:
    # Not by a name on PATH: the image has the machine's interpreter where the machine has it.
    return tenant.pod(name, SHARE, command=[sys.executable, "-c", PROGRAM, *map(str, steps)], **options)


def _own_limits(tenant: Tenant, mib: dict[str, int], findings: Findings) -> None:
    """The daemon's own limit is the share's largest, and widens nobody's."""
    tenant.start(_pod(tenant, "plain", mib["reserved"] + 1))
    tenant.wait_event("plain", "refused")
    findings.expect("who may not borrow is refused more than what is reserved", not tenant.events_of("plain", "taken"))
    tenant.delete_pods("plain")


def _told(harness: Harness, tenant: Tenant, mib: dict[str, int], findings: Findings) -> None:
    tenant.start(_pod(tenant, "borrower", mib["borrowed"], annotations={ANNOTATION: f"{mib['limit']}Mi"}))
    taken = tenant.wait_event("borrower", "taken")
    findings.expect("who may borrow gets what others leave free", taken["refused"] == 0)
    [told] = wait_until("a borrower", lambda: harness.gpu_node().get("status", {}).get("borrowers"), 30)
    findings.figures["told"] = told
    findings.expect("it is told with what it uses", told["observedMib"] >= mib["borrowed"])
    findings.expect(
        "and with what it may use", (told["reservedMib"], told["limitMib"]) == (mib["reserved"], mib["limit"])
    )


def _short(tenant: Tenant, mib: dict[str, int], findings: Findings) -> dict[str, Any]:
    tenant.start(_pod(tenant, "other", mib["asked"]))
    refused = tenant.wait_event("other", "refused")
    error, taken = tenant.wait_event("borrower", "gpu-error", 60), tenant.wait_event("other", "taken", 60)
    findings.expect("the borrower is terminated by the MPS daemon", error["code"] == TERMINATED)
    findings.expect("with notice", error["at"] - refused["at"] >= GRACE_SECONDS)
    findings.expect("the other gets what is reserved for it then", taken["at"] >= error["at"])

    def told() -> dict[str, str]:
        return parts.reasons(tenant, "borrower")

    wait_until("both events", lambda: {"MemoryShort", "ClientTerminated"} <= set(told()), 20, told)
    tenant.wait_event("other", "check")
    findings.expect("the other is not ended", not tenant.events_of("other", "gpu-error"))
    return {
        "seconds_until_ended": round(error["at"] - refused["at"], 2),
        "seconds_until_the_other_has_it": round(taken["at"] - refused["at"], 2),
        "told": told(),
    }
