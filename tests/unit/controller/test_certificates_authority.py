"""Certificates: when they are due, and that they hold up under a strict verifier."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from gpushare.controller.authority import (
    AUTHORITY_LIFE,
    BUNDLE,
    CERTIFICATE,
    CERTIFICATE_KEY,
    LEARNING_TIME,
    certificate_is_due,
    dns_names,
    renewed,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NAMES = dns_names("gpushare-webhook", "gpushare-system")
DAY = timedelta(days=1)


def first() -> dict[str, bytes]:
    data = renewed({}, NAMES, NOW)
    assert data is not None
    return data


def verify(data: dict[str, bytes], when: datetime, bundle: bytes | None = None) -> None:
    """As an API server does, strictly. Raises VerificationError."""
    store = Store(x509.load_pem_x509_certificates(bundle or data[BUNDLE]))
    verifier = PolicyBuilder().store(store).time(when).build_server_verifier(x509.DNSName(NAMES[0]))
    verifier.verify(x509.load_pem_x509_certificate(data[CERTIFICATE]), [])


def test_the_names_are_those_of_the_service() -> None:
    assert NAMES == ["gpushare-webhook.gpushare-system.svc", "gpushare-webhook.gpushare-system.svc.cluster.local"]


def test_a_first_chain_verifies_at_once_and_needs_nothing_more() -> None:
    data = first()
    verify(data, NOW)
    verify(data, NOW - timedelta(minutes=4))  # an API server whose clock is behind
    assert renewed(data, NAMES, NOW) is None
    assert renewed(data, NAMES, NOW + 240 * DAY) is None


def test_the_certificate_is_renewed_after_two_thirds_of_its_year_by_the_same_authority() -> None:
    data, later = first(), NOW + 245 * DAY
    fresh = renewed(data, NAMES, later)
    assert fresh is not None
    assert fresh[BUNDLE] == data[BUNDLE]
    assert fresh[CERTIFICATE] != data[CERTIFICATE]
    verify(fresh, later + 240 * DAY)


def test_a_new_authority_is_trusted_before_it_signs_so_that_no_handshake_fails() -> None:
    old, at = first(), NOW + AUTHORITY_LIFE * 2 / 3
    served = renewed(old, NAMES, at - 10 * DAY)
    assert served is not None

    announced = renewed(served, NAMES, at)
    assert announced is not None
    assert announced[CERTIFICATE] == served[CERTIFICATE]
    assert len(x509.load_pem_x509_certificates(announced[BUNDLE])) == 2
    verify(announced, at)
    assert renewed(announced, NAMES, at + LEARNING_TIME - timedelta(seconds=1)) is None

    switched = renewed(announced, NAMES, at + LEARNING_TIME)
    assert switched is not None
    assert switched[BUNDLE] == announced[BUNDLE]
    verify(switched, at + LEARNING_TIME)
    verify(served, at + LEARNING_TIME, bundle=switched[BUNDLE])  # a replica that has not reloaded yet
    assert renewed(switched, NAMES, at + DAY) is None


def test_an_expired_authority_is_no_longer_trusted() -> None:
    data, later = first(), NOW + AUTHORITY_LIFE + DAY
    fresh = renewed(data, NAMES, later)
    assert fresh is not None
    assert len(x509.load_pem_x509_certificates(fresh[BUNDLE])) == 1
    verify(fresh, later)


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_secret_is_made_whole(key: str, damage: bytes | None) -> None:
    data = first()
    if damage is None:
        del data[key]
    else:
        data[key] = damage
    fresh = renewed(data, NAMES, NOW)
    assert fresh is not None
    verify(fresh, NOW)
    ripe = renewed(fresh, NAMES, NOW + LEARNING_TIME)
    assert renewed(ripe or fresh, NAMES, NOW + LEARNING_TIME) is None


def test_a_key_of_another_certificate_is_noticed() -> None:
    mixed = {**first(), CERTIFICATE_KEY: first()[CERTIFICATE_KEY]}
    assert certificate_is_due(mixed, NAMES, NOW)


def test_a_renamed_service_gets_a_new_certificate() -> None:
    data = first()
    assert renewed(data, dns_names("other", "gpushare-system"), NOW) is not None


def test_a_clock_that_ran_ahead_when_the_chain_was_made_is_healed() -> None:
    assert renewed(first(), NAMES, NOW - DAY) is not None


def test_a_strict_openssl_takes_the_authority() -> None:
    context = ssl.create_default_context(cadata=first()[BUNDLE].decode())
    assert context.cert_store_stats()["x509_ca"] == 1
