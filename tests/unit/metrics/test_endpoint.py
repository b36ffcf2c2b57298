"""GET /metrics: what holds at the moment of the scrape, as Prometheus reads it, without holding up the event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare.metrics.endpoint import exposed
from gpushare.metrics.exported import Exported
from gpushare.metrics.families import Family, Sample

PODS = Family("gpushare_test_pods", "How many.", ("namespace",))
DONE = Family("gpushare_test_done", "How often.", kind="counter")


class Part:
    """A part whose figures a test sets."""

    def __init__(self, port: int) -> None:
        self.pods: dict[str, int] = {"one": 1}
        self.exported = Exported("test")
        self.exported.snapshot([PODS, DONE], lambda: dict(self.pods), self.samples)
        self.port = port

    def samples(self, pods: dict[str, int]) -> Iterable[Sample]:
        yield DONE.of(7)
        for namespace, count in pods.items():
            yield PODS.of(count, namespace)

    async def scrape(self, **headers: str) -> dict[str, list[tuple[dict[str, str], float]]]:
        async with aiohttp.ClientSession() as session, session.get(self.url, headers=headers) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            text = await answer.text()
        families = text_string_to_metric_families(text)
        return {
            sample.name: [(other.labels, other.value) for other in family.samples if other.name == sample.name]
            for family in families
            for sample in family.samples
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"


@pytest.fixture
async def part(free_port: int) -> AsyncIterator[Part]:
    part = Part(free_port)
    async with exposed(part.port, part.exported):
        yield part


async def test_a_scrape_shows_present_values_and_no_past_series(part: Part) -> None:
    assert (await part.scrape())["gpushare_test_pods"] == [({"namespace": "one"}, 1)]
    part.pods = {"two": 2}
    scraped = await part.scrape()
    assert scraped["gpushare_test_pods"] == [({"namespace": "two"}, 2)]
    assert scraped["gpushare_test_done_total"] == [({}, 7)]


async def test_it_says_which_release_and_part_it_is_and_what_the_process_uses(part: Part) -> None:
    scraped = await part.scrape()
    ((labels, value),) = scraped["gpushare_build_info"]
    assert (labels["part"], value) == ("test", 1)
    assert scraped["process_resident_memory_bytes"][0][1] > 0
    assert not [name for name in scraped if name.endswith("_created")]


async def test_a_scrape_may_be_compressed(part: Part) -> None:
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.get(part.url, headers={"Accept-Encoding": "gzip"}) as answer,
    ):
        assert answer.headers["Content-Encoding"] == "gzip"
        assert (await answer.read())[:2] == b"\x1f\x8b"
    assert (await part.scrape(**{"Accept-Encoding": "gzip"}))["gpushare_test_pods"]


async def test_while_a_scrape_is_rendered_the_event_loop_goes_on(part: Part) -> None:
    rendering, loop_goes_on = threading.Event(), threading.Event()

    def samples(_: object) -> Iterable[Sample]:
        rendering.set()
        assert loop_goes_on.wait(10), "the event loop waited for the scrape"
        return []

    part.exported.snapshot([Family("gpushare_test_slow", "Slow.")], lambda: True, samples)
    scrape = asyncio.create_task(part.scrape())
    assert await asyncio.to_thread(rendering.wait, 10)
    assert not scrape.done()
    loop_goes_on.set()
    assert await scrape


async def test_nothing_but_metrics_is_served(part: Part) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{part.port}/") as answer:
        assert answer.status == 404


async def test_port_0_serves_nothing() -> None:
    async with exposed(0, Exported("test")):
        pass


async def test_a_port_that_is_taken_is_an_error(part: Part) -> None:
    with pytest.raises(OSError, match=r"(?i)address already in use"):
        async with exposed(part.port, Exported("other")):
            pass
