"""A registry on loopback that wants a login, as far as a push needs one (OCI distribution specification)."""

import base64
import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

USER, PASSWORD = "pusher", "s3cret-word"


class Registry(http.server.ThreadingHTTPServer):
    """`blobs`, `manifests`: what was pushed, by digest and by repository:tag. `parts`: not whole yet, by path."""

    def __init__(self, wants_login: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.wants_login = wants_login
        self.parts: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


@contextmanager
def running(wants_login: bool = True) -> Iterator[Registry]:
    with Registry(wants_login) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def login(host: str, password: str = PASSWORD) -> str:
    """The file of a login, as docker and buildah write it."""
    return json.dumps({"auths": {host: {"auth": basic(password)}}})


def image(archive: Path) -> None:
    """Writes an OCI archive with one small layer."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as inside:
        _add(inside, "hello", b"hello")
    blobs = {digest(layer.getvalue()): layer.getvalue()}

    def described(kind: str, data: bytes) -> dict[str, Any]:
        blobs[digest(data)] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data)}

    roots = {"type": "layers", "diff_ids": list(blobs)}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": roots}).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "layers": [described("layer.v1.tar", layer.getvalue())],
        "config": described("config.v1+json", config),
    }
    top = described("manifest.v1+json", json.dumps(manifest).encode())
    with tarfile.open(archive, "w") as outside:
        _add(outside, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(outside, "index.json", json.dumps({"schemaVersion": 2, "manifests": [top]}).encode())
        for name, data in blobs.items():
            _add(outside, f"blobs/{name.replace(':', '/')}", data)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def basic(password: str) -> str:
    return base64.b64encode(f"{USER}:{password}".encode()).decode()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def parse_request(self) -> bool:
        """Refuses what comes without the login."""
        if not super().parse_request():
            return False
        if self.server.wants_login and self.headers.get("Authorization") != f"Basic {basic(PASSWORD)}":
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}'
            self._answer(HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": 'Basic realm="test"'}, body)
            return False
        return True

    def do_GET(self) -> None:
        self._answer(HTTPStatus.OK if self.path == "/v2/" else HTTPStatus.NOT_FOUND)

    def do_HEAD(self) -> None:
        blob = self.server.blobs.get(self.path.rpartition("/")[2])
        headers = {} if blob is None else {"Content-Length": str(len(blob))}
        self._answer(HTTPStatus.NOT_FOUND if blob is None else HTTPStatus.OK, headers)

    def do_POST(self) -> None:
        self._answer(HTTPStatus.ACCEPTED, {"Location": f"{self.path}upload-{len(self.server.blobs)}"})

    def do_PATCH(self) -> None:
        path = urlsplit(self.path).path
        self.server.parts[path] = self._body()
        self._answer(HTTPStatus.ACCEPTED, {"Location": path})

    def do_PUT(self) -> None:
        address, data = urlsplit(self.path), self._body()
        if "/manifests/" in address.path:
            repository, _, tag = address.path.removeprefix("/v2/").partition("/manifests/")
            self.server.manifests[f"{repository}:{tag}"] = data
        else:
            data = self.server.parts.pop(address.path, b"") + data
            assert parse_qs(address.query)["digest"] == [digest(data)]
            self.server.blobs[digest(data)] = data
        self._answer(HTTPStatus.CREATED, {"Docker-Content-Digest": digest(data), "Location": address.path})

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: HTTPStatus, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
