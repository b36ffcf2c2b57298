"""`spec.clients.classes`: who keeps its latency on a shared GPU, and who gives way (docs/decisions/0019-classes.md)."""

from typing import Annotated

from pydantic import ConfigDict, Field

from gpushare.api.base import ApiModel, checked, rule
from gpushare.api.client_class import ClientClass

MOST_PROTECTED = 16
"""Processes of protected clients that best effort gives way to on one GPU: MOST_PROTECTED of native/pages.h."""

NamespaceName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class ProtectedClients(ApiModel):
    per_gpu: Annotated[int, Field(ge=1, le=MOST_PROTECTED)] = Field(
        default=2,
        description="Clients of class Protected on one GPU, at most; a further one cannot attach until one of them has "
        f"ended. perGpu × clients.processes is at most {MOST_PROTECTED}.",
    )
    namespaces: list[NamespaceName] = Field(
        default_factory=list,
        max_length=64,
        description="Namespaces whose pods may be Protected. Empty: every namespace that may use the share.",
    )


class BestEffortClients(ApiModel):
    threads_beside_protected: Annotated[int, Field(ge=1, le=100)] = Field(
        default=50,
        description="Percent of the GPU's SMs for the kernels of a best-effort client while a protected one is active. "
        "Ceiling for the annotation gpushare.dev/threads-beside-protected, which may lower it. 100: no less than "
        "otherwise.",
    )


class Classes(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                "self.default in self.allowed",
                "classes.default must be one of classes.allowed",
                says="'default ' + self.default + ' is not allowed: add it to classes.allowed, or write one of ' + "
                "self.allowed.join(', ')",
                field=".default",
            )
        )
    )

    default: ClientClass = Field(
        default=ClientClass.NORMAL,
        description="The class of a client whose pod and size name none. Protected: best effort gives way to it. "
        "BestEffort: gives way. Normal: neither.",
    )
    allowed: list[Annotated[ClientClass, Field(description="A class of clients.")]] = Field(
        default_factory=lambda: list(ClientClass),
        min_length=1,
        max_length=3,
        description="The classes that pods (annotation gpushare.dev/class) and sizes may name. Default: all.",
        json_schema_extra={"default": [str(item) for item in ClientClass]},
    )
    protected: ProtectedClients = Field(default_factory=ProtectedClients, description="Who may be Protected.")
    best_effort: BestEffortClients = Field(
        default_factory=BestEffortClients, description="What BestEffort has while a protected client is active."
    )
