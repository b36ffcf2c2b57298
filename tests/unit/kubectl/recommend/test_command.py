"""The program: what a user sees who gives it what it cannot use, and what is printed for people and programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.kube.resources import GPU_SHARES
from gpushare.kubectl.recommend.show import report_of
from gpushare.kubectl.rules.recommend.rules import recommend
from tests.unit.kubectl import stand_in
from tests.unit.kubectl.cluster_objects import shown
from tests.unit.kubectl.recommend.test_prometheus import answers, serving, vector
from tests.unit.kubectl.rules.recommend.made_up import container, history, share

SHARES = {"items": [{"metadata": {"name": "team"}, "spec": share().wire()["spec"]}]}


def plugin(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The plugin with a stand-in for kubectl that knows one share and no node."""
    kubectl = stand_in.make(folder, {f"GET {GPU_SHARES.path()}": (200, SHARES)})
    command = [sys.executable, "-m", "gpushare.kubectl.main", "recommend", *arguments]
    environment = os.environ | stand_in.on_path(kubectl)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--window=3"], "argument --window: '3': write a time such as 90s, 5m, 36h or 7d, from 1h to 90d"),
        (["--watch=2h"], "argument --watch: '2h': write a time such as 90s, 5m, 36h or 7d, from 10s to 1h"),
        (["--prometheus=http://h", "--watch=1m"], "not allowed with argument"),
        (["--window=3d"], "error: --window: is for Prometheus; give --prometheus URL too"),
        (["--bearer-token-file=/nowhere"], "error: --bearer-token-file: is for Prometheus; give --prometheus URL"),
        (["--prometheus=h:9090"], "error: --prometheus 'h:9090': is no URL of a Prometheus"),
        (["--prometheus=http://h", "--bearer-token-file=/nowhere"], "error: --bearer-token-file /nowhere: cannot be"),
        (["--prometheus=http://h", "--bearer-token-file=/dev/null"], "holds no token in one line"),
        (["--prometheus=http://h", "--share=tem"], 'GpuShare "tem" not found; did you mean "team"?'),
        (["--prometheus=http://127.0.0.1:1"], "error: Prometheus at http://127.0.0.1:1 is not reached"),
        (["--watch=10s"], 'error: no agent was reached: there is none in namespace "gpushare-system"'),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = plugin(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_a_prometheus_without_our_series_is_told_from_a_quiet_one(tmp_path: Path) -> None:
    with serving(answers(vector())) as url:
        done = plugin(tmp_path, f"--prometheus={url}")
    assert done.returncode == 2
    assert "has no metric of gpushare in this window: does it scrape gpushare's pods" in done.stderr


def test_a_command_to_paste_is_one_line_and_names_its_cluster() -> None:
    recommended = recommend(history(containers=[container(5000)]))
    report = report_of("a watch", [recommended], [], ["--context=far"])
    command = (
        "kubectl --context=far patch gpushare team --type merge -p "
        """'{"spec":{"clients":{"memory":{"default":"5632Mi"}}}}'"""
    )
    for width in (None, 40):
        assert command in shown(report, width).splitlines()
    (item,) = report.data["recommendations"]
    assert item["command"] == command
    assert item["patch"] == {"spec": {"clients": {"memory": {"default": "5632Mi"}}}}
    assert (item["figures"]["since"], report.data["begin"]) == ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z")


def test_without_advice_there_is_nothing_to_apply_and_each_reason_is_told() -> None:
    text = shown(report_of("a watch", [recommend(history(days=0.5))], []))
    assert "0 recommendations. Nothing was changed." in text
    assert "not recommended:  team: perGpu 4: seen for 12h, too short a history" in text
    assert "to apply" not in text
    assert "cannot be known" not in text
