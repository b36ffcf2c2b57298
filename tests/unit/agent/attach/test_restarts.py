"""A broker that was started again becomes an event of the GpuNode."""

from gpushare.agent.attach.restarts import BrokerRestarts
from gpushare.api.conditions import EventReason
from gpushare.mps.wire import BrokerState


def broker(restarts: int, waited: int = 0) -> BrokerState:
    end = "was killed by signal 9" if restarts else ""
    return BrokerState(uuid="GPU-0", heartbeat=0.0, listening=True, restarts=restarts, last_end=end, waited=waited)


def test_a_restart_is_told_once_with_how_it_ended_and_who_waited() -> None:
    reports = BrokerRestarts("here")
    assert reports.update(broker(0), "a") == []
    [event] = reports.update(broker(1, waited=2), "a")
    assert (event.reason, event.type, event.happened) == (EventReason.BROKER_RESTARTED, "Warning", True)
    assert event.note == (
        "GPU GPU-0 of GpuShare a: the attach broker was killed by signal 9 and was started again; "
        "2 connections waited for it meanwhile. Clients that run go on."
    )
    assert reports.update(broker(1, waited=2), "a") == []
    assert len(reports.update(broker(2), "a")) == 1


def test_a_broker_of_a_new_container_is_none_that_was_started_again() -> None:
    reports = BrokerRestarts("here")
    reports.update(broker(3), "a")
    assert reports.update(broker(0), "a") == []


def test_a_restart_before_the_agents_start_is_no_new_occurrence() -> None:
    [event] = BrokerRestarts("here").update(broker(1), "a")
    assert not event.happened
