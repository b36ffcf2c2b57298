"""`kubectl gpushare top`: what containers use against what they are granted."""

from gpushare.cli.kubectl.top import Scrape, top
from tests.unit.cli.kubectl.cluster_objects import shown

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
    report = top([one, Scrape("n2", metrics("strayed", 500, None))], None, None)
    assert [client["pod"] for client in report.data["clients"]] == ["large", "strayed", "small"]
    text = shown(report)
    for part in ("9000/8192 MiB", "110%", "500/- MiB", "25%", "n2"):
        assert part in text
    assert report.code == 0


def test_top_can_be_asked_for_one_share_and_names_the_nodes_that_did_not_answer() -> None:
    scrapes = [Scrape("n1", metrics("a", 1, 2) + metrics("b", 1, 2, "other")), Scrape("n2", "", "was not reached")]
    report = top(scrapes, "team", "other")
    assert [client["pod"] for client in report.data["clients"]] == ["b"]
    assert report.data["unreachable"] == [{"node": "n2", "problem": "was not reached"}]
    assert report.code == 1
    assert top(scrapes, "elsewhere", None).data["clients"] == []
