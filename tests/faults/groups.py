"""Which orders are carried out in one run of a scene. Pure.

One at a time would take days. A run with several ends is the harder one; if anything is different after it, each of its
orders is carried out alone.
"""

from collections.abc import Iterable

from tests.faults.points import Order

AT_ONCE = {"agent": 3, "mps-supervisor": 3}
"""Orders of one part in a run; of the others one each. The kubelet puts off each restart longer than the last."""
HARMFUL = "mps-supervisor"
"""Its end may end clients, which would hide what the end of another part does: its orders are by themselves."""


def groups(orders: Iterable[Order]) -> list[list[Order]]:
    """Every order once, in as few groups as `AT_ONCE` allows; no group has a point twice."""
    made: list[list[Order]] = []
    for order in orders:
        group = next((it for it in made if _joins(order, it)), None)
        if group is None:
            made.append([order])
        else:
            group.append(order)
    return made


def _joins(order: Order, group: list[Order]) -> bool:
    role = order.point.role
    roles = [it.point.role for it in group]
    together = (role == HARMFUL) == (HARMFUL in roles)
    return together and roles.count(role) < AT_ONCE.get(role, 1) and all(it.point != order.point for it in group)
