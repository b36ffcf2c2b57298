"""The benchmark's report in a real browser: at the width of a telephone, and at that of a desk, it fits its page."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY
from tests.browser.driver import Browser

REPORT = REPOSITORY / "measurements/results/h100/report.html"
OUTSIDE = """
const edge = document.documentElement.clientWidth;
return [...document.querySelectorAll("main *")]
  .filter((one) => !one.closest(".scroll, pre") || one.matches(".scroll, pre"))
  .map((one) => [one, one.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.left < 0 || box.right > edge + 0.5))
  .map(([one, box]) => `${one.tagName} ${one.className}: ${box.left} to ${box.right} of ${edge}`);
"""
"""What lies beyond the edge of the page, apart from what scrolls in a box of its own."""
CUT = """
return [...document.images]
  .filter((one) => {
    const box = one.closest("figure").getBoundingClientRect(), own = one.getBoundingClientRect();
    return !one.naturalWidth || own.left < box.left - 0.5 || own.right > box.right + 0.5
      || Math.abs(own.width / own.height - one.naturalWidth / one.naturalHeight) > 0.02;
  })
  .map((one) => one.alt);
"""
"""Pictures that are not there, do not lie within their figures, or have lost their shape."""


@pytest.fixture(params=[420, 1280], ids=lambda width: f"{width}px")
def report(window: Browser, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Browser]:
    """A report with everything unfolded. A window cannot be narrower than about 500 pixels; its device's width can."""
    path = tmp_path / "report.html"
    path.write_text(REPORT.read_text().replace("<details>", "<details open>"))
    metrics = {"width": request.param, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    window.devtools("Emulation.setDeviceMetricsOverride", **metrics)
    window.open(path.as_uri())
    window.wait("return document.images.length && [...document.images].every((one) => one.complete)")
    assert window.run("return window.innerWidth") == request.param
    yield window
    window.open("about:blank")
    window.devtools("Emulation.clearDeviceMetricsOverride")


def test_nothing_is_wider_than_the_page_and_no_picture_is_cut(report: Browser) -> None:
    assert report.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert report.run(OUTSIDE) == []
    assert report.run(CUT) == []


def test_a_picture_opens_larger_and_closes_where_it_was(report: Browser) -> None:
    width = "return document.querySelector('#depth img').getBoundingClientRect().width"
    before = report.run(width)
    report.click("#depth .open")
    report.wait("return document.querySelector('#depth-large:target')")
    assert report.run(width) > before
    assert report.run("return document.documentElement.scrollWidth <= window.innerWidth")
    report.click("#depth-large .close")
    report.wait("return !document.querySelector('figure:target')")
    assert report.run(width) == before
    assert -1 < report.run("return document.querySelector('#depth').getBoundingClientRect().top") < 900
