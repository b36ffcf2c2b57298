"""Every order is in a group, and no group hides what another of its orders does."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.faults.groups import AT_ONCE, HARMFUL, again, divided, groups
from tests.faults.points import Order, Point

ROLES = ("agent", "operator", "webhook", "mps-broker", "mps-supervisor")
ORDERS = st.builds(
    lambda role, number, when: Order(Point(f"{role}: replace {number}"), when),
    st.sampled_from(ROLES),
    st.integers(0, 9),
    st.sampled_from(("before", "after")),
)


@given(st.dictionaries(st.text("abc"), st.sets(ORDERS.map(lambda order: order.point)), max_size=4), st.sets(ORDERS))
def test_scenes_that_pass_a_point_share_the_wanted_ends_at_it(
    passed: dict[str, set[Point]], settled: set[Order]
) -> None:
    made = divided({scene: list(points) for scene, points in passed.items()}, lambda order: order not in settled)
    possible = {Order(point, when) for points in passed.values() for point in points for when in point.moments()}
    assert sorted(order for orders in made.values() for order in orders) == sorted(possible - settled)
    for scene, orders in made.items():
        assert {order.point for order in orders} <= passed[scene]
        harmful = [order.point.role == HARMFUL for order in orders]
        assert harmful == sorted(harmful, reverse=True)


def test_scenes_that_pass_the_same_points_have_as_many_ends_of_each_part() -> None:
    points = [Point(f"{role}: replace {number}") for role in ROLES for number in range(6)]
    made = divided(dict.fromkeys("abc", points), lambda order: True)
    assert [Counter(order.point.role for order in orders) for orders in made.values()] == [
        Counter(dict.fromkeys(ROLES, 4))
    ] * 3


@given(st.lists(ORDERS, unique=True))
def test_groups_hold_each_order_once_and_keep_their_bounds(orders: list[Order]) -> None:
    made = groups(orders)
    assert sorted(order for group in made for order in group) == sorted(orders)
    for group in made:
        roles = [order.point.role for order in group]
        assert all(roles.count(role) <= AT_ONCE.get(role, 1) for role in roles)
        assert HARMFUL not in roles or set(roles) == {HARMFUL}
        assert len({order.point for order in group}) == len(group)


def test_parts_that_harm_nobody_end_in_one_run() -> None:
    orders = [Order(Point(f"{role}: replace it"), "before") for role in ROLES]
    assert [len(group) for group in groups(orders)] == [4, 1]
    assert groups(orders, alone=True) == [[order] for order in orders]


@given(st.lists(ORDERS, unique=True, min_size=1), st.data())
def test_a_difference_is_halved_down_to_the_order_that_makes_it(orders: list[Order], data: st.DataObject) -> None:
    culprit = data.draw(st.sampled_from(orders))
    runs, culprits = [orders], []
    while runs:
        run = runs.pop()
        left = again(run, set(run), different=culprit in run)
        culprits += [order for order in run if not left and culprit in run]
        runs += left
    assert culprits == [culprit]


def test_orders_that_others_kept_from_being_reached_are_run_again() -> None:
    orders = [Order(Point(f"{role}: replace it"), "before") for role in ROLES]
    assert again(orders, orders[:1], different=False) == [orders[1:]]
    assert again(orders, orders, different=False) == []
    assert again(orders, [], different=False) == []
