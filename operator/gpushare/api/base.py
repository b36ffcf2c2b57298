"""What the API models share: camelCase on the wire, snake_case in Python, nothing unknown accepted by accident."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """Unknown fields are ignored: an older part must be able to read an object that a newer one wrote."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, use_enum_values=False
    )

    def wire(self) -> dict[str, object]:
        """The object as Kubernetes stores it: camelCase, absent rather than null."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")
