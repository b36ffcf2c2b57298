"""`spec.wholeGpus`: GPUs that are given whole, the resource they are asked for by, and what they exclude."""

from typing import Annotated

from pydantic import AfterValidator, Field

from gpushare.api import names
from gpushare.api.base import ApiModel, checked, rule

OWN_DOMAIN = f"{names.GROUP}/"
NAME_NOT_FREE = (
    "must be outside of gpushare.dev, kubernetes.io and requests.*: write one like example.com/gpu or nvidia.com/gpu, "
    "or leave it out for gpushare.dev/<share>"
)


def _free_name(value: str) -> str:
    """A resource name that the kubelet takes from a device plugin and that is no other share's own."""
    if value.startswith("requests.") or "kubernetes.io/" in value or OWN_DOMAIN in value:
        raise ValueError(NAME_NOT_FREE)
    return value


ResourceName = Annotated[
    str,
    Field(
        min_length=3,
        max_length=128,
        pattern=names.RESOURCE_NAME_PATTERN,
        json_schema_extra=checked(
            rule(
                f"!self.startsWith('requests.') && !self.contains('kubernetes.io/') && !self.contains('{OWN_DOMAIN}')",
                NAME_NOT_FREE,
                says=f"'\"' + self + '\" {NAME_NOT_FREE}'",
            ),
        ),
    ),
    AfterValidator(_free_name),
]


class WholeGpus(ApiModel):
    resource_name: ResourceName | None = Field(
        default=None,
        description="The extended resource by which pods ask for GPUs, such as nvidia.com/gpu. On one node a name "
        "belongs to one share, or to another device plugin. Default: gpushare.dev/<share>. Immutable.",
    )


_MEANINGLESS = {
    "delivery ResourceClaim": "self.delivery == 'DevicePlugin'",
    "sizes": "!has(self.sizes) || size(self.sizes) == 0",
    "enforcement Terminate": "self.enforcement == 'Audit'",
    "maxWait": "!has(self.maxWait)",
}
"""Fields that mean nothing for whole GPUs, with the CEL expression that holds while they are not set."""

WHOLE_GPU_RULES = (
    rule(
        "has(self.wholeGpus) == has(oldSelf.wholeGpus) && "
        "(!has(self.wholeGpus) || self.wholeGpus == oldSelf.wholeGpus)",
        "wholeGpus is immutable: create a second share and let the GPUs move to it as they drain",
    ),
    *(
        rule(f"!has(self.wholeGpus) || ({absent})", f"not with wholeGpus, which no MPS serves: {what}")
        for what, absent in _MEANINGLESS.items()
    ),
    rule(
        "!has(self.wholeGpus) || !has(self.wholeGpus.resourceName) || !has(self.allowedNamespaces) || "
        "(!has(self.allowedNamespaces.matchLabels) && !has(self.allowedNamespaces.matchExpressions))",
        "allowedNamespaces needs the name gpushare.dev/<share>, so no wholeGpus.resourceName: others may serve "
        "another name on other nodes; a ResourceQuota bounds it",
        field=".allowedNamespaces",
    ),
)
"""They stand at the spec, since they look at its other fields, too."""
