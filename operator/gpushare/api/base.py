"""The base of the API models: camelCase on the wire, snake_case in Python."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict


class ApiModel(BaseModel):
    """Unknown fields are ignored: an older part must be able to read an object that a newer one wrote."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, use_enum_values=False
    )

    def wire(self) -> dict[str, object]:
        """The object as Kubernetes stores it: camelCase, absent rather than null."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


def rule(expression: str, message: str, *, says: str = "", field: str = "") -> dict[str, str]:
    """One entry of x-kubernetes-validations.

    `message` is what must hold; `says`, where given, is a CEL expression for a message that carries the refused value;
    `field` is the path, from where the rule stands, that the error names.
    """
    entry = {"rule": expression, "message": message}
    if says:
        entry["messageExpression"] = says
    if field:
        entry |= {"fieldPath": field, "reason": "FieldValueInvalid"}
    return entry


def checked(*rules: dict[str, str]) -> JsonDict:
    """`json_schema_extra` that carries rules for the API server to check."""
    return {"x-kubernetes-validations": [dict(entry) for entry in rules]}
