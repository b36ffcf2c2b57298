"""A flow's orders carried out by a team."""

from gpushare_workload.flow import Flow
from gpushare_workload.workers import Team


def dispatch(team: Team, flow: Flow, seconds: float) -> None:
    """Sends each order to its worker, which takes it from Worker.tasks(), until all items passed all stages.

    The team's workers are the flow's, by index. `seconds` is the longest that none of them may finish anything.
    """
    while not flow.finished:
        for order in flow.orders():
            team.send(order.worker, order)
        worker, _ = team.receive(seconds)
        flow.done(worker)
    for worker in range(len(team)):
        team.send(worker, None)
