"""The order of the reasons, the signals that follow one another, and the event that every end has."""

from signal import Signals
from typing import Any

import pytest

from gpushare.agent.process.processes import Process
from gpushare.agent.terminate.requests import TerminationReason, TerminationRequest, ended_event, next_signal

DUE, KILL_AFTER = 1300.0, 30.0
POD: Any = {"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "pod-1", "uid": "u"}


@pytest.mark.parametrize(
    ("now", "sent", "kill_after", "expected"),
    [
        pytest.param(DUE - 1, {}, KILL_AFTER, None, id="no signal before it is due"),
        pytest.param(DUE, {}, KILL_AFTER, Signals.SIGTERM, id="then SIGTERM"),
        pytest.param(DUE + 29, {Signals.SIGTERM: DUE}, KILL_AFTER, None, id="within its pod's grace period"),
        pytest.param(DUE + 30, {Signals.SIGTERM: DUE}, KILL_AFTER, Signals.SIGKILL, id="and killed after it"),
        pytest.param(DUE + 99, {Signals.SIGTERM: DUE, Signals.SIGKILL: DUE}, KILL_AFTER, None, id="once"),
        pytest.param(DUE + 99, {}, None, None, id="a process of no pod is never signalled"),
    ],
)
def test_sigkill_follows_sigterm_and_each_comes_once(
    now: float, sent: dict[Signals, float], kill_after: float | None, expected: Signals | None
) -> None:
    assert next_signal(now, DUE, sent, kill_after) is expected


def test_departures_take_their_turn_before_every_other_reason() -> None:
    assert sorted(TerminationReason, key=lambda reason: reason.order)[0] is TerminationReason.DEPARTURE


@pytest.mark.parametrize(
    ("reason", "signal", "expected"),
    [
        ("DEPARTURE", None, ("Normal", "ClientTerminated", "TerminateClient")),
        ("MAX_WAIT", None, ("Normal", "ClientTerminated", "TerminateClient")),
        ("VIOLATION", None, ("Warning", "ClientTerminated", "TerminateClient")),
        ("SHORTAGE", None, ("Warning", "ClientTerminated", "TerminateClient")),
        ("VIOLATION", Signals.SIGTERM, ("Warning", "ProcessEnded", "EndProcess")),
        ("SHORTAGE", Signals.SIGKILL, ("Warning", "ProcessEnded", "EndProcess")),
        ("FAULT", Signals.SIGTERM, ("Warning", "ProcessEnded", "EndFaultedClient")),
    ],
)
def test_every_end_has_one_event_that_says_what_was_done(
    reason: str, signal: Signals | None, expected: tuple[str, str, str]
) -> None:
    request = TerminationRequest(
        TerminationReason[reason], "GPU-0", Process(10, 100, 0, ()), POD, " (container app)", ": why.", signal=signal
    )
    event = ended_event(request)
    assert event is not None
    assert (event.type, event.reason, event.action) == expected
    assert (event.regarding, event.subject) == (POD, "10/100")
    done = "Ended the CUDA contexts of" if signal is None else f"Sent {signal.name} to"
    assert event.note == f"{done} process 10 (container app): why."


def test_a_process_of_no_pod_has_no_event() -> None:
    request = TerminationRequest(TerminationReason.MAX_WAIT, "GPU-0", Process(10, 100, 0, ()), None, "", "")
    assert ended_event(request) is None
