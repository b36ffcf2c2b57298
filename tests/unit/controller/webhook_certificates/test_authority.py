"""Certificates: when they are due, and that they hold up under a strict verifier."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from gpushare.controller.webhook_certificates.authority import (
    AUTHORITY_KEY,
    AUTHORITY_LIFE,
    BUNDLE,
    CERTIFICATE,
    CERTIFICATE_KEY,
    LEARNING_TIME,
    certificate_is_due,
    dns_names,
    renewed_authority,
    renewed_serving,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NAMES = dns_names("gpushare-webhook", "gpushare-system")
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Chain:
    """Both Secrets' data."""

    authority: dict[str, bytes]
    serving: dict[str, bytes]


def renewed(chain: Chain, names: list[str], now: datetime) -> Chain | None:
    """Both decisions in their order; None where neither Secret is due."""
    authority = renewed_authority(chain.authority, chain.serving, now)
    trusted = authority or chain.authority
    serving = renewed_serving(chain.serving, trusted, names, now)
    return Chain(trusted, serving or chain.serving) if authority or serving else None


def first() -> Chain:
    chain = renewed(Chain({}, {}), NAMES, NOW)
    assert chain is not None
    return chain


def verify(chain: Chain, when: datetime, bundle: bytes | None = None) -> None:
    """Verifies strictly, as an API server does. Raises VerificationError."""
    store = Store(x509.load_pem_x509_certificates(bundle or chain.authority[BUNDLE]))
    verifier = PolicyBuilder().store(store).time(when).build_server_verifier(x509.DNSName(NAMES[0]))
    verifier.verify(x509.load_pem_x509_certificate(chain.serving[CERTIFICATE]), [])


def test_a_certificate_by_a_clock_that_is_hours_ahead_is_good_at_once() -> None:
    verify(first(), NOW - timedelta(hours=12))


def test_the_names_are_those_of_the_service() -> None:
    assert NAMES == ["gpushare-webhook.gpushare-system.svc", "gpushare-webhook.gpushare-system.svc.cluster.local"]


def test_a_first_chain_verifies_at_once_and_needs_nothing_more() -> None:
    data = first()
    assert set(data.authority) == {BUNDLE, AUTHORITY_KEY}
    assert set(data.serving) == {BUNDLE, CERTIFICATE, CERTIFICATE_KEY}
    verify(data, NOW)
    verify(data, NOW - timedelta(minutes=4))  # an API server whose clock is behind
    assert renewed(data, NAMES, NOW) is None
    assert renewed(data, NAMES, NOW + 240 * DAY) is None


def test_a_certificate_is_renewed_by_its_authority_after_two_thirds() -> None:
    data, later = first(), NOW + 245 * DAY
    fresh = renewed(data, NAMES, later)
    assert fresh is not None
    assert fresh.authority == data.authority
    assert fresh.serving[CERTIFICATE] != data.serving[CERTIFICATE]
    verify(fresh, later + 240 * DAY)


def test_a_new_authority_is_trusted_before_it_signs() -> None:
    old, at = first(), NOW + AUTHORITY_LIFE * 2 / 3
    served = renewed(old, NAMES, at - 10 * DAY)
    assert served is not None

    announced = renewed(served, NAMES, at)
    assert announced is not None
    assert announced.serving == {**served.serving, BUNDLE: announced.authority[BUNDLE]}
    assert len(x509.load_pem_x509_certificates(announced.authority[BUNDLE])) == 2
    verify(announced, at)
    assert renewed(announced, NAMES, at + LEARNING_TIME - timedelta(seconds=1)) is None

    switched = renewed(announced, NAMES, at + LEARNING_TIME)
    assert switched is not None
    assert switched.authority == announced.authority
    verify(switched, at + LEARNING_TIME)
    verify(served, at + LEARNING_TIME, bundle=switched.authority[BUNDLE])  # a replica that has not reloaded yet
    assert renewed(switched, NAMES, at + DAY) is None


def test_an_expired_authority_is_no_longer_trusted() -> None:
    data, later = first(), NOW + AUTHORITY_LIFE + DAY
    fresh = renewed(data, NAMES, later)
    assert fresh is not None
    assert len(x509.load_pem_x509_certificates(fresh.authority[BUNDLE])) == 1
    verify(fresh, later)


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        ("authority", "ca.crt"),
        ("authority", "ca.key"),
        ("serving", "ca.crt"),
        ("serving", "tls.crt"),
        ("serving", "tls.key"),
    ],
)
@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_secret_is_made_whole(secret: str, key: str, damage: bytes | None) -> None:
    data = first()
    entries: dict[str, bytes] = getattr(data, secret)
    if damage is None:
        del entries[key]
    else:
        entries[key] = damage
    fresh = renewed(data, NAMES, NOW)
    assert fresh is not None
    verify(fresh, NOW)
    ripe = renewed(fresh, NAMES, NOW + LEARNING_TIME)
    assert renewed(ripe or fresh, NAMES, NOW + LEARNING_TIME) is None


def test_a_lost_authority_is_replaced_while_what_is_served_stays_trusted() -> None:
    data = first()
    fresh = renewed(Chain({}, data.serving), NAMES, NOW + DAY)
    assert fresh is not None
    assert fresh.serving[CERTIFICATE] == data.serving[CERTIFICATE]
    assert fresh.authority[AUTHORITY_KEY] != data.authority[AUTHORITY_KEY]
    verify(fresh, NOW + DAY)


def test_a_lost_serving_certificate_is_signed_again_by_the_same_authority() -> None:
    data = first()
    fresh = renewed(Chain(data.authority, {}), NAMES, NOW + DAY)
    assert fresh is not None
    assert fresh.authority == data.authority
    verify(fresh, NOW + DAY, bundle=data.authority[BUNDLE])


def test_a_pass_that_ended_between_the_two_secrets_is_taken_up() -> None:
    data = first()
    authority = renewed_authority({}, data.serving, NOW + DAY)
    assert authority is not None
    fresh = renewed(Chain(authority, data.serving), NAMES, NOW + DAY)
    assert fresh == Chain(authority, {**data.serving, BUNDLE: authority[BUNDLE]})


def test_a_key_of_another_certificate_is_noticed() -> None:
    data = first()
    mixed = {**data.serving, CERTIFICATE_KEY: first().serving[CERTIFICATE_KEY]}
    assert certificate_is_due(mixed, data.authority[BUNDLE], NAMES, NOW)


def test_a_renamed_service_gets_a_new_certificate() -> None:
    data = first()
    assert renewed(data, dns_names("other", "gpushare-system"), NOW) is not None


def test_a_clock_that_ran_ahead_when_the_chain_was_made_is_healed() -> None:
    assert renewed(first(), NAMES, NOW - 2 * DAY) is not None


def test_a_strict_openssl_takes_the_authority() -> None:
    context = ssl.create_default_context(cadata=first().authority[BUNDLE].decode())
    assert context.cert_store_stats()["x509_ca"] == 1
