"""The certificate of an endpoint is proven before it counts; tokens that would let too many in are refused."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import TYPE_CHECKING

import pytest
from certificates import make_certificate
from cryptography.hazmat.primitives import serialization
from trims_predictors.deployment.deployment import Settings
from trims_predictors.endpoint.credentials import Renewal, ServerCertificate
from trims_predictors.endpoint.principals import Principals, UnknownCallerError
from trims_predictors.endpoint.settings import EndpointSettings, read_token

from trims.core.errors import ConfigError
from trims.tenants import hash_of, read_tenants

if TYPE_CHECKING:
    from pathlib import Path

OPERATOR, BLUE, NEXT = (f"a long token of {name}" for name in ("the operator", "blue", "the next operator"))


def sealed_key(path: Path) -> Path:
    """Write the key of a certificate's file again, with a password."""
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    sealed = key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"password"))
    made = path.with_name("sealed.pem")
    made.write_bytes(sealed)
    return made


def test_what_is_no_pair_without_a_password_is_refused_and_the_last_pair_stays(tmp_path: Path) -> None:
    _, first = make_certificate(tmp_path)
    kept = first.rename(tmp_path / "kept.pem")
    _, other = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = ServerCertificate(kept, kept)
    certificate.connect(context)
    before = certificate._pair
    for chain, key in ((kept, other), (kept, sealed_key(kept)), (tmp_path / "empty", kept)):
        (tmp_path / "empty").touch()
        certificate.paths = chain, key
        with pytest.raises(ConfigError, match="are no certificate with its key"):
            certificate.read()
    assert certificate._pair is before
    certificate.paths = other, other
    certificate.read()()
    assert certificate._pair != before


def test_a_token_file_that_changes_counts_unless_a_tenant_has_its_token(tmp_path: Path) -> None:
    token, tenants = tmp_path / "token", tmp_path / "tenants.yaml"
    token.write_text(OPERATOR)
    token.chmod(0o600)
    tenants.write_text(f"blue:\n  tokens: ['{hash_of(BLUE)}']\n")
    settings = EndpointSettings(
        Settings("/run"), token=read_token(token), tenants=read_tenants(tenants), token_file=token, tenants_file=tenants
    )
    callers = Principals(settings.token, settings.tenants)
    renewal = Renewal(settings, callers, None)

    async def look() -> None:
        for _ in range(2):
            await renewal.look()

    def takes(given: str) -> bool:
        try:
            callers.enter(f"Bearer {given}")
        except UnknownCallerError:
            return False
        return True

    for path in (token, tenants):  # opening it would wait for a program that writes
        text = path.read_text()
        path.unlink()
        os.mkfifo(path, 0o600)
        asyncio.run(look())
        path.unlink()
        path.write_text(text)
        path.chmod(0o600)
        asyncio.run(look())
    broken = (BLUE, "", f"{NEXT}\n{OPERATOR}", NEXT * 200, "\x00")
    for text, taken in ((OPERATOR, OPERATOR), *((each, OPERATOR) for each in broken), (NEXT, NEXT)):
        token.write_text(text)
        asyncio.run(look())
        assert [each for each in (OPERATOR, NEXT) if takes(each)] == [taken]
        assert takes(BLUE)
