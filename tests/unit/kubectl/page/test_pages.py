"""What a browser gets, and who gets nothing."""

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from gpushare.kubectl.cluster import UnreachableError
from gpushare.kubectl.page.content.feed import Feed
from gpushare.kubectl.page.serving.pages import PageAnswer, Pages
from localcluster.paths import REPOSITORY

HOST = "127.0.0.1:4000"
STATIC = REPOSITORY / "operator/gpushare/kubectl/page/static"


def nobody(_namespace: str, _name: str) -> dict[str, Any] | None:
    return None


def pages(**over: Any) -> Pages:
    given: dict[str, Any] = {
        "feed": Feed("e"), "looking": lambda _: None, "pod": nobody, "about": {"cluster": "c"}, "hosts": ["127.0.0.1"],
        "secret": "s3cret",
    }  # fmt: skip
    return Pages(**given | over)


def get(target: str, host: str = HOST, method: str = "GET", **over: Any) -> PageAnswer:
    return pages(**over).answer(method, target, host)


@pytest.mark.parametrize("path", ["", "page.js", "page.css", "icon.svg", "changes", "about", "changes?epoch=&since=0"])
def test_the_page_lies_below_its_secret_and_loads_nothing_foreign(path: str) -> None:
    answer = get(f"/s3cret/{path}")
    assert answer.status == HTTPStatus.OK
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    "target",
    ["/", "/changes", "/page.js", "/s3cre", "/s3cretx/", "/S3CRET/", "//s3cret/", "/s3cret", "/é/", "http://[", "*"],
)
def test_without_the_secret_there_is_nothing(target: str) -> None:
    assert get(target).status in (HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST)


def test_what_a_browser_is_started_with_leads_to_the_page_once() -> None:
    served = pages(once="first")
    assert served.answer("HEAD", "/first", HOST).status == HTTPStatus.NOT_FOUND, "nothing that only looks"
    answer = served.answer("GET", "/first", HOST)
    assert (answer.status, answer.headers["Location"]) == (HTTPStatus.SEE_OTHER, "/s3cret/")
    assert served.answer("GET", "/first", HOST).status == HTTPStatus.NOT_FOUND
    assert pages().answer("GET", "/", HOST).status == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("name", ["../__init__.py", "%2e%2e/pages.py", "static", "pages.py", "a/page.js"])
def test_no_other_file_is_served(name: str) -> None:
    assert get(f"/s3cret/{name}").status == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:4000", "127.0.0.1.evil.example", "127.0.0.1:x", "localhost", ":80"]
)
def test_a_foreign_name_that_leads_here_gets_nothing_even_with_the_secret(host: str) -> None:
    assert get("/s3cret/", host).status == HTTPStatus.MISDIRECTED_REQUEST


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT"])
def test_nothing_can_be_changed(method: str) -> None:
    answer = get("/s3cret/changes", method=method)
    assert (answer.status, answer.headers["Allow"]) == (HTTPStatus.METHOD_NOT_ALLOWED, "GET, HEAD")


@pytest.mark.parametrize("since", ["-1", "x", "1e3", "٣", "9" * 16, "1.0"])
def test_a_revision_that_is_none_is_refused(since: str) -> None:
    assert get(f"/s3cret/changes?since={since}").status == HTTPStatus.BAD_REQUEST


def test_a_query_of_many_fields_is_refused() -> None:
    assert get("/s3cret/changes?" + "a=1&" * 9).status == HTTPStatus.BAD_REQUEST


def test_an_address_without_end_is_refused() -> None:
    assert get("/s3cret/changes?nodes=" + "a," * 5000).status == HTTPStatus.REQUEST_URI_TOO_LONG


def test_the_nodes_on_screen_are_passed_on() -> None:
    seen: list[list[str]] = []
    get("/s3cret/changes?nodes=n1,n2,", looking=seen.append)
    assert seen == [["n1", "n2"]]


def test_a_pod_is_asked_for_by_its_two_names() -> None:
    def pod_named(namespace: str, name: str) -> dict[str, Any]:
        return {"name": f"{namespace}/{name}"}

    assert json.loads(get("/s3cret/pod?namespace=ml&name=a", pod=pod_named).body) == {"name": "ml/a"}
    for query in ("", "namespace=ml", "namespace=ml&name=..", f"namespace=ml&name={'a' * 254}"):
        assert get(f"/s3cret/pod?{query}", pod=pod_named).status == HTTPStatus.BAD_REQUEST


def test_a_pod_that_is_gone_or_cannot_be_read_says_so() -> None:
    def fails(_namespace: str, _name: str) -> dict[str, Any] | None:
        raise UnreachableError("no cluster: it is asleep")

    gone, asleep = get("/s3cret/pod?namespace=ml&name=a"), get("/s3cret/pod?namespace=ml&name=a", pod=fails)
    assert (gone.status, json.loads(gone.body)) == (404, {"error": "there is no pod ml/a any more"})
    assert (asleep.status, json.loads(asleep.body)) == (502, {"error": "no cluster: it is asleep"})


@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda path: path.name)
def test_the_page_makes_no_markup_of_text_and_names_no_other_place(path: Path) -> None:
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
                      "http://", "https://", "javascript:", "style=", "onclick="):  # fmt: skip
        assert forbidden not in text
