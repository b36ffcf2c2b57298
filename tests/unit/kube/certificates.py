"""Certificate authorities, and the certificates of API servers that they sign."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "localhost"
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def sign(self, directory: Path, host: str = HOST, until: timedelta = DAY) -> tuple[Path, Path]:
        """Files with a certificate for `host`, valid for three days `until` from now, and with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder("server", key, until)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        files = directory / "tls.crt", directory / "tls.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def authority(name: str = "cluster") -> Authority:
    """An authority like those of some clusters: without key identifiers, which X.509's strict rules ask for."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, key, DAY).issuer_name(_name(name))
    signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return Authority(key, signed.sign(key, hashes.SHA256()))


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


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
