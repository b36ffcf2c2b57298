"""Whatever answers at the URL: within a time and a size, figures, or one plain sentence."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubectl.cluster import UnreachableError
from gpushare.kubectl.failures import WrongInputError
from gpushare.kubectl.recommend.prometheus import PrometheusApi, PrometheusSeries, checked_url

Handle = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(handle: Handle) -> Iterator[str]:
    """The URL of a server that answers each GET by `handle`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            handle(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answers(body: bytes, status: int = 200, **headers: str) -> Handle:
    def handle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return handle


def vector(*values: str) -> bytes:
    result = [{"metric": {"uuid": f"GPU-{at}"}, "value": [1.5, value]} for at, value in enumerate(values)]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def test_a_question_is_asked_with_its_time_and_limit_and_the_token() -> None:
    seen: list[Any] = []

    def handle(request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        seen.append((url.path, parse_qs(url.query), request.headers["Authorization"]))
        answers(vector("3"))(request)

    with serving(handle) as url:
        series = PrometheusApi(f"{url}/prefix", "secret", seconds=9).instant("up", 12.0)
    assert series == [PrometheusSeries({"uuid": "GPU-0"}, [(1.5, 3.0)])]
    asked = {"query": ["up"], "time": ["12.000"], "timeout": ["9s"]}
    assert seen == [("/prefix/api/v1/query", asked, "Bearer secret")]


def test_a_range_gives_the_points_of_each_series_in_order() -> None:
    body = {"status": "success", "data": {"result": [{"metric": {}, "values": [[1, "1"], [2, "NaN"], [3, "4"]]}]}}
    with serving(answers(json.dumps(body).encode())) as url:
        assert PrometheusApi(url).over("up", 1, 3, 1) == [PrometheusSeries({}, [(1.0, 1.0), (3.0, 4.0)])]


def test_what_is_no_figure_is_left_out() -> None:
    with serving(answers(vector("NaN", "+Inf", "7"))) as url:
        assert [series.points for series in PrometheusApi(url).instant("up", 1)] == [[(1.5, 7.0)]]


REFUSED = b'{"status":"error","errorType":"execution","error":"query processing would load\\n too many samples"}'


@pytest.mark.parametrize(
    ("handle", "says"),
    [
        (answers(REFUSED, 422), "refuses a query (HTTP 422): query processing would load too many samples"),
        (answers(b"<html>", 401), "refuses a query (HTTP 401): is this a Prometheus, and may you read it"),
        (answers(b"", 302, Location="https://login.example/"), "sends us on (HTTP 302) to https://login.example/"),
        (answers(vector("1").replace(b"{", b'{"warnings":["store 3 timed out"],', 1)),
         "answers, but not with all that it has: store 3 timed out"),
        (answers(b"<html>"), "answers something that no Prometheus does: b'<html>'"),
        (answers(b'{"status":"success","data":{}}'), "answers something that no Prometheus does"),
        (answers(b"[" * 15_000), "answers something that no Prometheus does"),
        (answers(vector(*(["1"] * 500))), "answers with more than 20000 bytes: ask for one --share, or a shorter"),
    ],
)  # fmt: skip
def test_each_failure_is_one_plain_sentence(handle: Handle, says: str) -> None:
    with serving(handle) as url, pytest.raises(UnreachableError) as failed:
        PrometheusApi(url, largest=20_000).instant("up", 1)
    assert str(failed.value).startswith(f"Prometheus at {url} {says}")
    assert "\n" not in str(failed.value)


def test_nobody_there_is_said() -> None:
    with serving(answers(b"")) as url:
        pass
    with pytest.raises(UnreachableError, match=r"is not reached: .*refused"):
        PrometheusApi(url).instant("up", 1)


def test_an_answer_that_never_begins_or_never_ends_is_not_waited_for() -> None:
    over = threading.Event()

    def silent(_: BaseHTTPRequestHandler) -> None:
        over.wait(10)

    def endless(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while not over.wait(0.02):
                request.wfile.write(b" ")
        except OSError:
            pass  # the client has gone, as it should

    for handle in (silent, endless):
        begun = time.monotonic()
        try:
            with serving(handle) as url:
                with pytest.raises(UnreachableError, match="has not answered within"):
                    PrometheusApi(url, seconds=0.3).instant("up", 1)
                over.set()
        finally:
            over.clear()
        assert time.monotonic() - begun < 5


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metric", "value", "values", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.one_of(st.binary(max_size=50), JSON.map(lambda value: json.dumps({"data": {"result": value}}).encode())))
def test_no_answer_raises_anything_else(body: bytes) -> None:
    with serving(answers(body)) as url:
        try:
            for series in PrometheusApi(url).instant("up", 1):
                assert series.points
        except UnreachableError as error:
            assert "no Prometheus does" in str(error)  # noqa: PT017 - both outcomes are allowed


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://localhost:9090/", "http://localhost:9090"),
        ("https://metrics.example/prom", "https://metrics.example/prom"),
        ("http://[::1]:9090", "http://[::1]:9090"),
    ],
)
def test_a_url_is_taken(text: str, url: str) -> None:
    assert checked_url(text) == url


@pytest.mark.parametrize(
    "text",
    ["", "localhost:9090", "file:///etc/passwd", "http://", "http://h:x", "http://h:0", "http://h/?q=1", "http://[::1",
     "http://h/ x", "http://h/#a", "ftp://h", "http://h\n"],
)  # fmt: skip
def test_what_is_no_url_of_a_prometheus_is_refused_by_name(text: str) -> None:
    with pytest.raises(WrongInputError, match="--prometheus"):
        checked_url(text)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(WrongInputError) as failed:
        checked_url("http://me:hunter2@host:9090")
    assert "hunter2" not in str(failed.value)
    assert "--bearer-token-file" in str(failed.value)
