"""When the webhook's certificates are due, and how they are made. Pure except for random keys; the clock is given.

Our own authority, valid for ten years, signs a serving certificate for one year; both are replaced after two thirds of
their life. A new authority is first only added to the bundle that clients trust; it signs once they had the time to
read the bundle, so that no handshake fails. Two Secrets hold them: the authority's has its key, and only the operator
reads it; the serving one has what the webhook serves, and a copy of the bundle.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=365)
CLOCK_SKEW = timedelta(days=1)
"""How far the operator's time of day may be ahead of the API server's, which would refuse its certificate otherwise."""
LEARNING_TIME = timedelta(minutes=10)
"""The time between adding an authority to the bundle and signing with it; API servers read a new bundle within
seconds."""

BUNDLE, AUTHORITY_KEY, CERTIFICATE, CERTIFICATE_KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"


def dns_names(service: str, namespace: str) -> list[str]:
    """The names by which API servers reach a Service; they use the first."""
    return [f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"]


def renewed_authority(
    authority: Mapping[str, bytes], serving: Mapping[str, bytes], now: datetime
) -> dict[str, bytes] | None:
    """The authority's data as it should be from `now` on; None where it is good. Anything may be in either Secret.

    If the authority's own bundle is lost, the serving Secret's copy says which one is still trusted.
    """
    if not _authority_is_due(authority, now):
        return None
    trusted = _certificates(authority.get(BUNDLE, b"")) or _certificates(serving.get(BUNDLE, b""))
    return _new_authority(trusted, now)


def renewed_serving(
    serving: Mapping[str, bytes], authority: Mapping[str, bytes], names: Sequence[str], now: datetime
) -> dict[str, bytes] | None:
    """The serving data as it should be from `now` on; None where it is good. `authority` must be good."""
    bundle = authority[BUNDLE]
    if certificate_is_due(serving, bundle, names, now):
        return {BUNDLE: bundle, **_new_certificate(authority, names, now)}
    if serving.get(BUNDLE) != bundle:
        return {BUNDLE: bundle, **{key: serving[key] for key in (CERTIFICATE, CERTIFICATE_KEY)}}
    return None


def _authority_is_due(authority: Mapping[str, bytes], now: datetime) -> bool:
    """Tells whether it is missing, unreadable, without its key, or past two thirds of its life."""
    bundle, key = _certificates(authority.get(BUNDLE, b"")), authority.get(AUTHORITY_KEY, b"")
    return not bundle or not _has_key(bundle[0], key) or _is_past_two_thirds(bundle[0], now)


def certificate_is_due(serving: Mapping[str, bytes], trusted: bytes, names: Sequence[str], now: datetime) -> bool:
    """Tells whether it is missing, unreadable, without its key, for other names, past two thirds of its life, or of an
    old authority.

    `trusted` is the authority's bundle, the newest first.
    """
    chain, bundle = _certificates(serving.get(CERTIFICATE, b"")), _certificates(trusted)
    if not chain or not bundle or not _has_key(chain[0], serving.get(CERTIFICATE_KEY, b"")):
        return True
    if _names(chain[0]) != list(names) or _is_past_two_thirds(chain[0], now):
        return True
    if _is_signed_by(chain[0], bundle[0]):
        return False
    is_trusted = any(_is_signed_by(chain[0], old) for old in bundle[1:])
    return not is_trusted or now - bundle[0].not_valid_before_utc >= LEARNING_TIME + CLOCK_SKEW


def _new_authority(trusted: Sequence[x509.Certificate], now: datetime) -> dict[str, bytes]:
    """A new authority in front of the newest trusted one that is still valid."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpushare webhook authority {now:%Y-%m-%d}")])
    certificate = (
        _builder(name, name, key.public_key(), now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    kept = [old for old in trusted if old.not_valid_after_utc > now][:1]
    bundle = b"".join(_pem(authority) for authority in [certificate, *kept])
    return {BUNDLE: bundle, AUTHORITY_KEY: _key_pem(key)}


def _new_certificate(authority: Mapping[str, bytes], names: Sequence[str], now: datetime) -> dict[str, bytes]:
    """A serving certificate by the newest of `authority`, which must be good."""
    issuer = _certificates(authority[BUNDLE])[0]
    authority_key = serialization.load_pem_private_key(authority[AUTHORITY_KEY], None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)  # noqa: S101 - we made it, and checked it above
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpushare webhook")])
    issuer_key_id = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), now, CERTIFICATE_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key_id), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return {CERTIFICATE: _pem(certificate), CERTIFICATE_KEY: _key_pem(key)}


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certificates(pem: bytes) -> list[x509.Certificate]:
    """The certificates; none where they cannot be read."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _has_key(certificate: x509.Certificate, pem: bytes) -> bool:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        return False
    return isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == certificate.public_key()


def _is_past_two_thirds(certificate: x509.Certificate, now: datetime) -> bool:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= start + (end - start) * 2 / 3 or now < start


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return extension.value.get_values_for_type(x509.DNSName)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
