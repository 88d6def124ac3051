"""Certificates that tests make for themselves."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from pathlib import Path

_DAY = dt.timedelta(days=1)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write an authority, and a certificate of it with its key for 127.0.0.1. Return the paths of both files."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name.from_rfc4514_string("CN=made-up authority")
    authority = _signed(name, name, authority_key.public_key(), authority_key, x509.BasicConstraints(True, None))
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = _signed(x509.Name.from_rfc4514_string("CN=127.0.0.1"), name, key.public_key(), authority_key, host)
    pem = serialization.Encoding.PEM
    (folder / "authority.pem").write_bytes(authority.public_bytes(pem))
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(secret + leaf.public_bytes(pem))
    return folder / "authority.pem", folder / "server.pem"


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    by: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = dt.datetime.now(dt.timezone.utc)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - _DAY).not_valid_after(now + _DAY)
    return made.add_extension(extension, critical=True).sign(by, hashes.SHA256())
