"""Which orders are carried out in one run of a scene, and which of them again. Pure.

One at a time would take days. A run with several ends is the harder one; if anything is different after it, its halves
are run, and so on down to single orders.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tests.faults.points import Order, Point

AT_ONCE = {"agent": 20, "mps-supervisor": 16, "mps-broker": 4, "webhook": 4, "operator": 6}
"""Orders of one part in a run; of the others one each. A scene takes longer than a restart, so many ends in a run are
quick, and they are the harder test: a part that was just ended meets what the one before it has left."""
HARMFUL = "mps-supervisor"
"""Its end may end clients, which would hide what the end of another part does: its orders are by themselves."""


def divided(passed: Mapping[str, Sequence[Point]], wanted: Callable[[Order], bool]) -> dict[str, list[Order]]:
    """Each wanted order in one of the scenes that pass its point, so that all have about as many of each part.

    `passed`: the points of each scene. First come the orders of HARMFUL, which few campaigns would reach otherwise.
    """
    scenes: dict[Point, list[str]] = {}
    for scene, points in passed.items():
        for point in points:
            scenes.setdefault(point, []).append(scene)
    orders: dict[str, list[Order]] = {scene: [] for scene in passed}
    many: Counter[tuple[str, str]] = Counter()
    for point in sorted(scenes, key=lambda point: (point.role != HARMFUL, len(scenes[point]))):
        for order in filter(wanted, (Order(point, when) for when in point.moments())):
            scene = min(scenes[point], key=lambda scene: many[scene, point.role])
            many[scene, point.role] += 1
            orders[scene].append(order)
    return orders


def groups(orders: Iterable[Order], *, alone: bool = False) -> list[list[Order]]:
    """Every order once, in as few groups as `AT_ONCE` allows; no group has a point twice. `alone`: each by itself."""
    if alone:
        return [[order] for order in orders]
    made: list[list[Order]] = []
    for order in orders:
        group = next((group for group in made if _joins(order, group)), None)
        if group is None:
            made.append([order])
        else:
            group.append(order)
    return made


def _joins(order: Order, group: list[Order]) -> bool:
    role = order.point.role
    roles = [member.point.role for member in group]
    together = (role == HARMFUL) == (HARMFUL in roles)
    return (
        together and roles.count(role) < AT_ONCE.get(role, 1) and all(member.point != order.point for member in group)
    )


def again(group: Sequence[Order], done: Collection[Order], *, different: bool) -> list[list[Order]]:
    """The runs that a run of `group` leaves to do. `done`: those of its orders that were carried out.

    After a difference its halves, since nobody knows whose it is. Otherwise those that others kept from being reached:
    they went first. Where nobody went at all, the scene does not pass there.
    """
    if different:
        half = len(group) // 2
        return [list(part) for part in (group[:half], group[half:]) if part] if half else []
    left = [member for member in group if member not in done]
    return [left] if left and done else []
