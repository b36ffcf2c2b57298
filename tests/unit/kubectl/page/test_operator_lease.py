"""The page says that the operator is silent, by its Lease and the API server's clock, and takes that back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpushare.kubectl.page.cluster.operator_lease import OperatorLease
from tests.unit.kubectl.page.fake_api import fake_api, status

PATH = "/apis/coordination.k8s.io/v1/namespaces/gpushare-system/leases/gpushare-operator"
FORBIDDEN = 403, status("Forbidden", "you may not get leases")


def lease(ago: float) -> dict[str, Any]:
    written = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": {"name": "gpushare-operator", "managedFields": [{"time": written}]}}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (600, "the operator has renewed no Lease for 10m"),
        (5, ""),
        (FORBIDDEN, ""),
        ((404, status("NotFound", "none")), ""),
        ({"metadata": {}}, ""),
    ],
    ids=["silent", "renewed", "no right", "no Lease", "no Lease's answer"],
)
def test_the_page_notes_a_silent_operator_and_nothing_else(answer: Any, says: str) -> None:
    """A number: of a Lease that was renewed so many seconds ago."""
    notes: list[str] = []
    with fake_api() as api:
        api.answers[PATH] = lease(answer) if isinstance(answer, int) else answer
        OperatorLease(api.reader(), "gpushare-system", notes.append).look()
        assert [path for path, _ in api.asked] == [PATH]
    (note,) = notes
    assert note.startswith(says) if says else not note


def test_the_note_goes_once_the_operator_is_back() -> None:
    notes: list[str] = []
    with fake_api() as api:
        watched = OperatorLease(api.reader(), "gpushare-system", notes.append)
        for ago in (600, 1):
            api.answers[PATH] = lease(ago)
            watched.look()
    assert [bool(note) for note in notes] == [True, False]
