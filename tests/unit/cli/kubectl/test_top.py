"""`kubectl gpushare top`: what containers use against what they are granted."""

from gpushare.agent.status.metrics import FAMILIES, USED
from gpushare.cli.kubectl.views.top import CONTAINER, SHOWN, Scrape, top
from tests.unit.cli.kubectl.cluster_objects import gpu_node, shown

LABELS = 'namespace="team",pod="{pod}",container="app",share="{share}",uuid="GPU-0"'


def metrics(pod: str, used: int, granted: int | None, share: str = "inference") -> str:
    labels = LABELS.format(pod=pod, share=share)
    lines = [f"gpushare_container_memory_used_bytes{{{labels}}} {used << 20}",
             f"gpushare_container_processes{{{labels}}} 1.0"]  # fmt: skip
    if granted is not None:
        lines += [f"gpushare_container_memory_granted_bytes{{{labels}}} {granted << 20}",
                  f"gpushare_container_threads_granted_ratio{{{labels}}} 0.25",
                  f"gpushare_container_processes_granted{{{labels}}} 1.0"]  # fmt: skip
    return "\n".join(lines) + "\n"


def test_top_sorts_clients_by_what_they_use_and_shows_it_against_the_grant() -> None:
    one = Scrape("n1", metrics("small", 100, 8192) + metrics("large", 9000, 8192, "other"))
    report = top([one, Scrape("n2", metrics("strayed", 500, None))], [])
    assert [client["pod"] for client in report.data["clients"]] == ["large", "strayed", "small"]
    text = shown(report)
    for part in ("9000Mi  8192Mi  110%  1/1", "500Mi   -       -     1/-", "25%", "n2"):
        assert part in text
    assert report.code == 0


def test_top_can_be_asked_for_one_share_and_names_the_nodes_that_did_not_answer() -> None:
    scrapes = [Scrape("n1", metrics("a", 1, 2) + metrics("b", 1, 2, "other")), Scrape("n2", "", "was not reached")]
    report = top(scrapes, [], "team", "other")
    assert [client["pod"] for client in report.data["clients"]] == ["b"]
    assert report.data["unreachable"] == [{"node": "n2", "problem": "was not reached"}]
    assert report.code == 1
    assert top(scrapes, [], "elsewhere").data["clients"] == []


HOLDER = {"uuid": "GPU-0", "share": "inference", "slots": [0, 1, 2], "pods": ["team/a", "team/quiet"]}


def test_top_names_who_holds_slots_without_a_client() -> None:
    node = gpu_node("GPU-0", holders=[HOLDER])
    report = top([Scrape("n1", metrics("a", 1, 2))], [node])
    (idle,) = report.data["idle"]
    assert (idle["slotsHeld"], idle["clients"], idle["pods"]) == (3, 1, ["team/quiet"])
    assert "team/quiet" in shown(report)
    assert top([Scrape("n1", metrics("a", 1, 2))], [node], "elsewhere").data["idle"] == []
    busy = "".join(metrics(pod, 1, 2) for pod in "abc")
    assert top([Scrape("n1", busy)], [node]).data["idle"] == []


def test_of_a_node_whose_figures_are_unknown_nobody_is_called_idle() -> None:
    node = gpu_node("GPU-0", holders=[HOLDER])
    assert top([Scrape("n1", "", "was not reached")], [node]).data["idle"] == []


def test_the_metrics_that_top_reads_are_those_that_agents_serve() -> None:
    assert {family.name for family in FAMILIES} >= SHOWN
    assert USED.labels == CONTAINER
