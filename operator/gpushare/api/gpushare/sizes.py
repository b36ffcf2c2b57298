"""`spec.sizes`: claims by name, and the rules that hold them to what `spec.clients` allows."""

from typing import Annotated

from pydantic import Field

from gpushare.api import names
from gpushare.api.base import ApiModel, rule
from gpushare.api.client_class import ClientClass
from gpushare.api.gpushare.clients import Percent
from gpushare.api.gpushare.memory import Memory
from gpushare.api.quantity import format_mib, parse_mib


class Size(ApiModel):
    """One line for users: a claim with these capacities, by name."""

    name: Annotated[str, Field(min_length=1, max_length=30, pattern=names.SIZE_NAME_PATTERN)] = Field(
        description="Becomes the DeviceClass `<name>.<share>.gpushare.dev` and, in every namespace that may use the "
        "share, the ResourceClaimTemplate `<name>.<share>`. At most 30 characters of a-z, 0-9 and -."
    )
    threads: Percent = Field(description="Percent of the GPU's SMs for each process; at most clients.threads.max.")
    memory: Memory = Field(description="GPU memory reserved for the client; 512Mi to clients.memory.max.")
    memory_limit: Memory | None = Field(
        default=None,
        description="The most GPU memory that the client may use; at most clients.memory.limits.max. Default: what is "
        "reserved.",
    )
    client_class: ClientClass | None = Field(
        default=None,
        alias="class",
        description="The class of its clients, one of clients.classes.allowed, unless their pod names another. "
        "Default: clients.classes.default.",
    )

    @property
    def memory_mib(self) -> int:
        return parse_mib(self.memory)

    @property
    def burst_mib(self) -> int:
        """How far the client may borrow above what is reserved."""
        return max(0, parse_mib(self.memory_limit) - self.memory_mib) if self.memory_limit else 0

    @property
    def capacities(self) -> dict[str, str]:
        """What a claim of this size asks for, as quantities."""
        amounts = {names.CAPACITY_THREADS: str(self.threads), names.CAPACITY_MEMORY: format_mib(self.memory_mib)}
        return amounts | ({names.CAPACITY_MEMORY_BURST: format_mib(self.burst_mib)} if self.burst_mib else {})


_LARGEST = "quantity(has(self.clients.memory.max) ? self.clients.memory.max : self.clients.memory.default)"
_READABLE = (
    "(has(self.clients.memory.max) ? isQuantity(self.clients.memory.max) : isQuantity(self.clients.memory.default))"
)
_TOO_BIG = f"isQuantity(s.memory) && quantity(s.memory).compareTo({_LARGEST}) > 0"
_LIMIT = "has(s.memoryLimit) && isQuantity(s.memoryLimit)"
_LIMITS = "self.clients.memory.limits"
_LIMIT_TOO_BIG = (
    f"{_LIMIT} && (!has({_LIMITS}) || isQuantity({_LIMITS}.max) && "
    f"quantity(s.memoryLimit).compareTo(quantity({_LIMITS}.max)) > 0)"
)
_LIMIT_TOO_SMALL = f"{_LIMIT} && isQuantity(s.memory) && quantity(s.memoryLimit).compareTo(quantity(s.memory)) < 0"
_TOO_SMALL = "isQuantity(s.memory) && quantity(s.memory).compareTo(quantity('512Mi')) < 0"

SIZE_RULES = (
    rule(
        "!has(self.sizes) || !has(self.clients) || self.sizes.all(s, s.threads <= self.clients.threads.max)",
        "a size's threads must not exceed clients.threads.max",
        field=".sizes",
    ),
    rule(
        f"!has(self.sizes) || !has(self.clients) || !{_READABLE} || !self.sizes.exists(s, {_TOO_BIG})",
        "a size's memory must not exceed clients.memory.max",
        field=".sizes",
    ),
    rule(
        f"!has(self.sizes) || !self.sizes.exists(s, {_TOO_SMALL})",
        "a size's memory must be at least 512Mi: the CUDA context alone needs up to 520 MiB of it",
        field=".sizes",
    ),
    rule(
        f"!has(self.sizes) || !has(self.clients) || !self.sizes.exists(s, {_LIMIT_TOO_BIG})",
        "a size's memoryLimit needs clients.memory.limits, and must not exceed its max",
        field=".sizes",
    ),
    rule(
        f"!has(self.sizes) || !self.sizes.exists(s, {_LIMIT_TOO_SMALL})",
        "a size's memoryLimit must be at least its memory, which is reserved",
        field=".sizes",
    ),
    rule(
        "!has(self.sizes) || !has(self.clients) || !self.sizes.exists(s, has(s.class) && (!has(self.clients.classes) "
        "|| !(s.class in self.clients.classes.allowed)))",
        "a size's class needs clients.classes, and must be one of its allowed",
        field=".sizes",
    ),
)
"""They stand at the spec, since they compare its sizes with its `clients`."""
