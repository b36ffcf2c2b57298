"""All rules over one share's history. Pure."""

from dataclasses import dataclass

from gpushare.kubectl.rules.recommend.activity import by_activity
from gpushare.kubectl.rules.recommend.advice import Advice, AdviceKind
from gpushare.kubectl.rules.recommend.borrowing import borrowing
from gpushare.kubectl.rules.recommend.clients import idle_threads, other_number
from gpushare.kubectl.rules.recommend.history import ShareHistory
from gpushare.kubectl.rules.recommend.memory import smaller_default
from gpushare.kubectl.rules.recommend.pods import own_gpu


@dataclass(frozen=True, slots=True)
class ShareAdvice:
    """`notes`: why nothing is recommended, and what was seen besides; each a sentence about the share."""

    history: ShareHistory
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]


def recommend(history: ShareHistory) -> ShareAdvice:
    memory, of_memory = smaller_default(history)
    number, of_number = other_number(history)
    lending = borrowing(history)
    raised = any(item.figures.get("clients", 0) > history.share.clients.per_gpu for item in lending)
    if lending:  # it says what to reserve, and how many clients then fit
        memory, number = [], [item for item in number if item.kind is not AdviceKind.MORE_CLIENTS]
    more = raised or any(item.kind is AdviceKind.MORE_CLIENTS for item in number)
    advice = (*lending, *memory, *number, *idle_threads(history, more), *own_gpu(history), *by_activity(history))
    return ShareAdvice(history, advice, tuple(dict.fromkeys([*of_memory, *([] if raised else of_number)])))
