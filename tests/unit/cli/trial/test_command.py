"""A trial begins where its copies will be alone, and waits for slots that were held a moment ago."""

from concurrent.futures import Future
from typing import Any

import pytest

from gpushare.cli.kubectl.wrong import WrongInputError
from gpushare.cli.trial.command import share_for
from tests.unit.cli.trial.test_manifest import share


class SharesOverTime:
    """Of a cluster: the share as each list shows it; the last one stays."""

    def __init__(self, *shown: dict[str, Any]) -> None:
        self.shown = list(shown)

    def items(self, _: object) -> Future[list[dict[str, Any]]]:
        asked: Future[list[dict[str, Any]]] = Future()
        asked.set_result([self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]])
        return asked


SECONDS = 0.05


def test_slots_of_the_trial_before_are_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = SharesOverTime(share(used=4), share(used=4), share())
    share_for(cluster, "inference", 2, SECONDS)  # type: ignore[arg-type]
    assert capsys.readouterr().err.count("4 slots are counted as held") == 1


def test_slots_that_stay_held_refuse_a_trial() -> None:
    with pytest.raises(WrongInputError, match="3 slots of GpuShare inference are held"):
        share_for(SharesOverTime(share(used=3)), "inference", 2, SECONDS)  # type: ignore[arg-type]


def test_a_share_that_serves_for_no_trial_refuses_it_at_once() -> None:
    cluster = SharesOverTime(share(used=3, gpus=2), share())
    with pytest.raises(WrongInputError, match="has 2 ready GPUs"):
        share_for(cluster, "inference", 2, SECONDS)  # type: ignore[arg-type]
