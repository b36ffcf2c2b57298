"""Certificate authorities, and the certificates of API servers that they sign."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "localhost"
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """`identified`: its certificate and those that it signs have key identifiers."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    identified: bool = False

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def sign(self, directory: Path, host: str = HOST, until: timedelta = DAY) -> tuple[Path, Path]:
        """Files with a certificate for `host`, valid for three days `until` from now, and with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder("server", key, until)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.SubjectAlternativeName([_alternative_name(host)]), critical=False)
        )
        if self.identified:
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
            builder = builder.add_extension(issuer, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        files = directory / "tls.crt", directory / "tls.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def authority(
    name: str = "cluster",
    *,
    identified: bool = False,
    constraints_are_critical: bool = True,
    signed_by: Authority | None = None,
) -> Authority:
    """By default one like those of some clusters: without key identifiers, which X.509's strict rules ask for.

    `signed_by`: who signs it, in place of itself.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = signed_by.certificate.subject if signed_by else _name(name)
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    builder = _builder(name, key, DAY).issuer_name(issuer).add_extension(constraints, constraints_are_critical)
    if identified:
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    signed = builder.sign(signed_by.key if signed_by else key, hashes.SHA256())
    return Authority(key, signed, identified)


def server_context(files: tuple[Path, Path]) -> ssl.SSLContext:
    """Another certificate and key, loaded into it later, is what new connections get."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context


def _builder(name: str, key: ec.EllipticCurvePrivateKey, until: timedelta) -> x509.CertificateBuilder:
    end = datetime.now(UTC) + until
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 3 * DAY)
        .not_valid_after(end)
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
