"""The feed: whoever asks for what is newer ends with the same rows as whoever begins anew."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubectl.page.content import feed as module
from gpushare.kubectl.page.content.feed import MOST_BYTES, Feed


class Browser:
    """Keeps what it was sent, as the page does."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.epoch, self.since, self.answers = "", 0, 0

    def ask(self, feed: Feed) -> None:
        """Asks until there is no more."""
        while True:
            answer = json.loads(feed.changes(self.epoch, self.since))
            self.answers += 1
            if answer["reset"]:
                self.rows.clear()
            self.rows.update(answer["changed"])
            for key in answer["gone"]:
                self.rows.pop(key, None)
            self.epoch, self.since = answer["epoch"], answer["revision"]
            if not answer["more"]:
                return


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.dictionaries(st.sampled_from("klmn"), st.integers(0, 3)), st.booleans()),
    max_size=30,
)


@given(STEPS)
def test_differences_lead_to_the_same_rows_as_a_new_beginning(steps: list[tuple[str, dict[str, int], bool]]) -> None:
    feed, follower = Feed(), Browser()
    owned: dict[str, dict[str, int]] = {}
    for owner, rows, asks in steps:
        mine = {f"{owner}/{key}": {"value": value} for key, value in rows.items()}
        feed.replace(owner, mine)
        owned[owner] = rows
        if asks:
            follower.ask(feed)
    follower.ask(feed)
    newcomer = Browser()
    newcomer.ask(feed)
    expected = {f"{owner}/{key}": {"value": value} for owner, rows in owned.items() for key, value in rows.items()}
    assert follower.rows == newcomer.rows == expected


def test_what_is_the_same_as_before_is_no_change() -> None:
    feed = Feed("e")
    feed.replace("node/a", {"gpu/1": {"state": "Ready"}})
    before = json.loads(feed.changes("e", 0))["revision"]
    feed.replace("node/a", {"gpu/1": {"state": "Ready"}})
    answer = json.loads(feed.changes("e", before))
    assert (answer["revision"], answer["changed"], answer["gone"]) == (before, {}, [])


def test_a_gpu_that_moves_to_another_node_stays() -> None:
    feed, browser = Feed(), Browser()
    feed.replace("node/a", {"gpu/1": {"node": "a"}})
    feed.replace("node/b", {"gpu/1": {"node": "b"}})
    feed.replace("node/a", {})
    browser.ask(feed)
    assert browser.rows == {"gpu/1": {"node": "b"}}


def test_an_answer_is_bounded_and_the_rest_follows() -> None:
    feed, browser = Feed(), Browser()
    text = "x" * 1000
    for number in range(3000):
        feed.replace(f"node/{number}", {f"node/{number}": {"text": text}})
    assert len(feed.changes("", 0)) < MOST_BYTES + 1000
    browser.ask(feed)
    assert (len(browser.rows), browser.answers) == (3000, 6)


def test_one_row_that_is_larger_than_an_answer_is_still_sent() -> None:
    feed, browser = Feed(), Browser()
    feed.replace("a", {"a/1": {"text": "x" * MOST_BYTES}, "a/2": {}})
    browser.ask(feed)
    assert set(browser.rows) == {"a/1", "a/2"}


def test_another_run_of_the_program_begins_anew() -> None:
    feed, browser = Feed(), Browser()
    feed.replace("a", {"a/1": {}, "a/2": {}})
    browser.ask(feed)
    restarted = Feed()
    restarted.replace("a", {"a/3": {}})
    browser.ask(restarted)
    assert set(browser.rows) == {"a/3"}


def test_who_was_away_for_longer_than_removals_are_kept_begins_anew() -> None:
    feed, browser = Feed(), Browser()
    feed.replace("first", {"first/1": {}})
    browser.ask(feed)
    feed.replace("first", {})
    for number in range(module.GONE_KEPT):
        feed.replace("other", {f"other/{number}": {}})
        feed.replace("other", {})
    assert json.loads(feed.changes(browser.epoch, browser.since))["reset"] is True
    browser.ask(feed)
    assert browser.rows == {}
