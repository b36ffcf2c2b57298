"""The serving certificate over real handshakes: renewed without a restart, and a broken Secret changes nothing."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpushare.controller.webhook_certificates.authority import BUNDLE, dns_names, renewed_authority, renewed_serving
from gpushare.http.server import serve
from gpushare.kube.client import SECRETS
from gpushare.webhook.serving.certificate import CertificateSource, LiveCertificate
from tests.unit.fake_kube import FakeKube

NAMES = dns_names("gpushare-webhook", "gpushare-system")


def chain() -> dict[str, bytes]:
    now = datetime.now(UTC)
    authority = renewed_authority({}, {}, now)
    assert authority is not None
    serving = renewed_serving({}, authority, NAMES, now)
    assert serving is not None
    return serving


def encoded(data: dict[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def strict_context(bundle: bytes) -> ssl.SSLContext:
    """A context as strict as an API server, and as Python 3.13 by default."""
    context = ssl.create_default_context(cadata=bundle.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def client(name: str) -> bytes:
    """A certificate of a client, signed by itself, and its key."""
    key, subject, now = ec.generate_private_key(ec.SECP256R1()), _name(name), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .sign(key, SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + secret


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


class Served:
    def __init__(self, port: int, certificate: LiveCertificate) -> None:
        self.port, self.certificate = port, certificate

    async def status(self, bundle: bytes, certificate: Path | None = None) -> int:
        """The status of GET / for a client that trusts `bundle` alone. Raises aiohttp.ClientConnectorError without
        trust."""
        url, tls = f"https://127.0.0.1:{self.port}/", strict_context(bundle)
        if certificate:
            tls.load_cert_chain(certificate)
        async with (
            aiohttp.ClientSession(trust_env=False) as http,
            http.get(url, ssl=tls, server_hostname=NAMES[0]) as answer,
        ):
            return answer.status


def app() -> web.Application:
    async def root(_: web.Request) -> web.Response:
        return web.Response()

    made = web.Application()
    made.add_routes([web.get("/", root)])
    return made


@pytest.fixture
async def served(free_port: int) -> AsyncIterator[Served]:
    certificate = LiveCertificate()
    async with serve(app(), free_port, tls=certificate.context):
        yield Served(free_port, certificate)


async def test_a_renewed_certificate_is_served_without_a_restart(served: Served) -> None:
    old, new = chain(), chain()
    assert served.certificate.load(encoded(old))
    assert await served.status(old[BUNDLE]) == 200

    assert served.certificate.load(encoded(new))
    assert await served.status(new[BUNDLE]) == 200
    with pytest.raises(aiohttp.ClientConnectorError, match="CERTIFICATE_VERIFY_FAILED"):
        await served.status(old[BUNDLE])


async def test_without_a_certificate_no_handshake_succeeds(served: Served) -> None:
    assert not served.certificate.loaded
    with pytest.raises(aiohttp.ClientConnectorError):
        await served.status(chain()[BUNDLE])


async def test_clients_need_a_certificate_of_the_authority_and_a_known_name(free_port: int, tmp_path: Path) -> None:
    own, other, stranger = client("apiserver"), client("kubelet"), client("apiserver")
    files = {"own": own, "other": other, "stranger": stranger}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    certificate, serving = LiveCertificate((own + other).decode()), chain()
    certificate.load(encoded(serving))
    async with serve(app(), free_port, tls=certificate.context, client_names=["apiserver"]):
        served = Served(free_port, certificate)
        assert await served.status(serving[BUNDLE], tmp_path / "own") == 200
        for refused in (None, tmp_path / "other", tmp_path / "stranger"):
            with pytest.raises(aiohttp.ClientError):
                await served.status(serving[BUNDLE], refused)
        assert await served.status(serving[BUNDLE], tmp_path / "own") == 200


def test_an_authority_that_is_no_certificate_is_said_so() -> None:
    with pytest.raises(ValueError, match="the clients' authority is no certificate in PEM"):
        LiveCertificate("garbage")


@pytest.mark.parametrize("broken", ["missing", "garbage", "no base64", "a key of another"])
async def test_a_broken_secret_leaves_the_good_chain_in_use(served: Served, broken: str) -> None:
    good, other = chain(), chain()
    served.certificate.load(encoded(good))
    damage = {
        "missing": {},
        "garbage": {**encoded(good), "tls.crt": base64.b64encode(b"garbage").decode()},
        "no base64": {**encoded(good), "tls.key": "x"},
        "a key of another": {**encoded(good), "tls.key": encoded(other)["tls.key"]},
    }[broken]
    assert not served.certificate.load(damage)
    assert await served.status(good[BUNDLE]) == 200


def test_the_same_chain_is_not_loaded_twice() -> None:
    certificate, data = LiveCertificate(), encoded(chain())
    assert certificate.load(data)
    assert not certificate.load(data)


def test_it_is_known_until_when_the_certificate_in_use_lasts() -> None:
    certificate, first = LiveCertificate(), chain()
    certificate.load(encoded(first))
    served = x509.load_pem_x509_certificate(first["tls.crt"])
    assert certificate.not_after == served.not_valid_after_utc
    certificate.load({"tls.crt": "garbage", "tls.key": ""})
    assert certificate.not_after == served.not_valid_after_utc, "a broken Secret changes nothing that is served"


async def test_the_secret_is_followed_by_its_name_alone() -> None:
    def put(name: str) -> dict[str, bytes]:
        made = chain()
        kube.put(SECRETS, {"metadata": {"name": name, "namespace": "gpushare-system"}, "data": encoded(made)})
        return made

    def serves(made: dict[str, bytes]) -> bool:
        """Tells whether a chain is served already, so that loading it again changes nothing."""
        return not source.certificate.load(encoded(made))

    kube = FakeKube()
    put("other")
    first = put("tls")
    source = CertificateSource(kube, "gpushare-system", "tls")  # type: ignore[arg-type]
    task = asyncio.create_task(source.run())
    await kube.followed(SECRETS)
    assert serves(first)
    renewed = put("tls")
    put("other")
    await kube.followed(SECRETS)
    assert serves(renewed)
    task.cancel()
