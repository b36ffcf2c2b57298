"""Owners: Deployments, Jobs and whatever else makes pods from a template. Who applies one hears at once what admission
will answer to its pods. Later only its controller hears that, and puts it into an event.

Guarantees: an owner is never refused and never changed; what is said of its pods is what admission says to them.
"""

from typing import Any

from gpushare.webhook.review import Admitted, Answer, mapped, shown
from gpushare.webhook.warnings import MOST_WARNINGS


def pod_of(owner: dict[str, Any]) -> dict[str, Any]:
    """The pod that the owner's template makes, without a name; of a CronJob, the one of its Jobs."""
    spec = mapped(owner, "spec")
    maker = mapped(mapped(spec, "jobTemplate"), "spec") or spec
    template = mapped(maker, "template")
    return {"metadata": mapped(template, "metadata"), "spec": mapped(template, "spec")}


def warn_owner(kind: str, answer: Answer) -> Admitted:
    """`kind`: of the owner. `answer`: to its pods."""
    if isinstance(answer, Admitted):
        return Admitted(warnings=answer.warnings)
    refused = f"pods of this {shown(kind)} will be refused"
    return Admitted(warnings=tuple(f"{refused}: {problem}" for problem in answer.problems[:MOST_WARNINGS]))
