"""Every order is in a group, and no group hides what another of its orders does."""

from hypothesis import given
from hypothesis import strategies as st

from tests.faults.groups import AT_ONCE, HARMFUL, groups
from tests.faults.points import Order, Point

ROLES = ("agent", "operator", "webhook", "mps-broker", "mps-supervisor")
ORDERS = st.builds(
    lambda role, number, when: Order(Point(f"{role}: replace {number}"), when),
    st.sampled_from(ROLES),
    st.integers(0, 9),
    st.sampled_from(("before", "after")),
)


@given(st.lists(ORDERS, unique=True))
def test_groups_hold_each_order_once_and_keep_their_bounds(orders: list[Order]) -> None:
    made = groups(orders)
    assert sorted(it for group in made for it in group) == sorted(orders)
    for group in made:
        roles = [it.point.role for it in group]
        assert all(roles.count(role) <= AT_ONCE.get(role, 1) for role in roles)
        assert HARMFUL not in roles or set(roles) == {HARMFUL}
        assert len({it.point for it in group}) == len(group)


def test_parts_that_harm_nobody_end_in_one_run() -> None:
    orders = [Order(Point(f"{role}: replace it"), "before") for role in ROLES]
    assert [len(group) for group in groups(orders)] == [4, 1]
