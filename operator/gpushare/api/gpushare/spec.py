"""What a platform team writes of a GpuShare: which GPUs it takes, and how they are given to pods."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from gpushare.api.base import ApiModel, checked, rule
from gpushare.api.gpushare.clients import Clients
from gpushare.api.gpushare.memory import Enforcement
from gpushare.api.gpushare.sizes import SIZE_RULES, Size
from gpushare.api.gpushare.whole_gpus import WHOLE_GPU_RULES, WholeGpus
from gpushare.api.meta import LabelSelector
from gpushare.api.quantity import Duration

_EITHER = "write spec.clients for shared GPUs or spec.wholeGpus for whole ones, one of the two"


class Delivery(StrEnum):
    DEVICE_PLUGIN = "DevicePlugin"
    RESOURCE_CLAIM = "ResourceClaim"


class GpuSelection(ApiModel):
    products: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        default_factory=list,
        max_length=16,
        description="NVML product names, such as `NVIDIA H200`, that this share takes. Empty: every product.",
    )
    per_node: Annotated[int, Field(ge=1, le=16)] | None = Field(
        default=None,
        description="GPUs taken on each node, at most. Default: all that match. Only for nodes that "
        "NVIDIA's device plugin does not serve.",
    )


class GpuShareSpec(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=checked(
            rule("has(self.clients) != has(self.wholeGpus)", _EITHER),
            *WHOLE_GPU_RULES,
            rule(
                "self.delivery == 'ResourceClaim' || !has(self.sizes) || size(self.sizes) == 0",
                "sizes need delivery ResourceClaim: a slot of DevicePlugin has no size of its own",
                field=".sizes",
            ),
            rule(
                "self.delivery == 'ResourceClaim' || !has(self.clients) || self.clients.threads.overcommit == 1",
                "threads.overcommit needs delivery ResourceClaim: with DevicePlugin the number of slots alone bounds "
                "the clients of a GPU",
                field=".clients.threads.overcommit",
            ),
            rule(
                "self.delivery == 'DevicePlugin' || !has(self.clients) || !has(self.clients.placement) || "
                "self.clients.placement == 'Pack'",
                "placement Spread needs delivery DevicePlugin: the scheduler places claims, on the first GPU that fits",
                field=".clients.placement",
            ),
            rule(
                "self.delivery == 'DevicePlugin' || !has(self.clients) || !has(self.clients.queue)",
                "queue needs delivery DevicePlugin: a claim has its part of the GPU as long as its pod; take queue out",
                field=".clients.queue",
            ),
            *SIZE_RULES,
            rule(
                "self.delivery == 'DevicePlugin' || !has(self.clients) || !has(self.clients.memory.limits) || "
                "!has(self.clients.memory.limits.default)",
                "limits.default needs delivery DevicePlugin: a claim asks for capacity memoryBurst, or names a size "
                "that has a memoryLimit",
                field=".clients.memory.limits.default",
            ),
        )
    )

    node_selector: LabelSelector = Field(
        default_factory=LabelSelector,
        description="Nodes whose GPUs this share takes. Default: every node that has an agent.",
    )
    gpus: GpuSelection = Field(default_factory=GpuSelection, description="Which GPUs of those nodes are taken.")
    clients: Clients | None = Field(
        default=None, description="How each GPU is divided, and what a client is granted. Either this or wholeGpus."
    )
    whole_gpus: WholeGpus | None = Field(
        default=None,
        description="Gives containers whole GPUs, without MPS: one container has one or several of a node for itself. "
        "In place of `clients`; not with ResourceClaims, sizes, maxWait or enforcement Terminate.",
    )
    allowed_namespaces: LabelSelector = Field(
        default_factory=LabelSelector,
        description="Namespaces, by their labels, whose pods may use this share. Default: all.",
    )
    enforcement: Enforcement = Field(
        default=Enforcement.AUDIT,
        description="What happens to a client seen above its grant: Audit reports it (event, metric, condition), "
        "Terminate ends it through the MPS daemon so that its neighbours go on.",
    )
    fault_timeout: Duration = Field(
        default="5m",
        description="How long faulted clients may run on after a fatal GPU fault before they are ended. Their CUDA "
        "contexts are lost already, but until the last client has ended the GPU takes no new one.",
    )
    max_wait: Duration | None = Field(
        default=None,
        description="How long a change waits for a GPU's clients before it ends them, in order. Such a change needs a "
        "new MPS daemon (image, driver root, resources), removes the GPU from the share, or deletes the share. "
        "Default: for ever; no running client is ever ended for a change.",
    )
    sizes: list[Size] = Field(
        default_factory=list,
        max_length=16,
        description="Delivery ResourceClaim only: claims by name, each a DeviceClass and a ResourceClaimTemplate of "
        "its own, so that a pod asks for one in a line and a ResourceQuota counts them exactly.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    delivery: Delivery = Field(
        default=Delivery.DEVICE_PLUGIN,
        description="How pods ask for their part: DevicePlugin (equal slots, resource gpushare.dev/<share>) or "
        "ResourceClaim (every claim with its own threads and memory; Kubernetes 1.36 or newer). "
        "Immutable: to change it, create a second share and let the GPUs move as they drain.",
        json_schema_extra=checked(
            rule(
                "self == oldSelf",
                "delivery is immutable: create a second share with the other delivery and delete this one once its "
                "pods are gone",
            )
        ),
    )

    @model_validator(mode="after")
    def _clients_or_whole(self) -> "GpuShareSpec":
        if (self.clients is None) == (self.whole_gpus is None):
            raise ValueError(_EITHER)
        return self
