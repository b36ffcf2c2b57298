"""The types of Kubernetes' own API that ours use."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gpushare.api.base import ApiModel, checked, rule


class OwnerReference(ApiModel):
    api_version: str
    kind: str
    name: str
    uid: str


class ObjectMeta(ApiModel):
    """The fields of an object's metadata that we read; never written as a whole."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[OwnerReference] = Field(default_factory=list)


class SelectorOperator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]


class Requirement(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
                "In and NotIn need values; Exists and DoesNotExist take none",
                field=".values",
            )
        )
    )

    key: LabelKey = Field(description="Label key.")
    operator: SelectorOperator = Field(description="In, NotIn, Exists or DoesNotExist.")
    values: list[LabelValue] = Field(
        default_factory=list, max_length=64, description="Needed by In and NotIn, forbidden for the others."
    )


class LabelSelector(ApiModel):
    """A Kubernetes label selector. Empty matches everything."""

    match_labels: dict[str, LabelValue] = Field(
        default_factory=dict,
        max_length=32,
        description="Labels that must all be present with these values.",
    )
    match_expressions: list[Requirement] = Field(
        default_factory=list, max_length=32, description="Requirements that must all hold."
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(_holds(requirement, labels) for requirement in self.match_expressions)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case SelectorOperator.IN:
            return value is not None and value in requirement.values
        case SelectorOperator.NOT_IN:
            return value is None or value not in requirement.values
        case SelectorOperator.EXISTS:
            return value is not None
        case SelectorOperator.DOES_NOT_EXIST:
            return value is None


class Condition(ApiModel):
    type: str = Field(max_length=64, description="Name of the condition, such as Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(max_length=64, description="One CamelCase word to search for.")
    message: str = Field(default="", max_length=2048, description="The state, and what to do about it.")
    last_transition_time: str = Field(
        description="When the status last changed.", json_schema_extra={"format": "date-time"}
    )
    observed_generation: int = Field(default=0, ge=0, description="The spec's generation that the condition is about.")
