"""The endpoint refuses to listen openly."""

from __future__ import annotations

from pathlib import Path

import pytest
from trims_predictors.deployment.deployment import Settings
from trims_predictors.endpoint.settings import EndpointSettings, is_loopback, read_token

from trims.core.errors import ConfigError

FLEET = Settings("/run")
PEM = Path("/some.pem")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_neither_token_nor_tls(host: str) -> None:
    assert is_loopback(host)
    EndpointSettings(FLEET, host=host).validate()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_an_address_that_others_reach_needs_both(host: str) -> None:
    assert not is_loopback(host)
    for settings in (
        EndpointSettings(FLEET, host=host),
        EndpointSettings(FLEET, host=host, token="t"),
        EndpointSettings(FLEET, host=host, certificate=PEM, private_key=PEM),
    ):
        with pytest.raises(ConfigError, match=r"it needs a token .* and TLS"):
            settings.validate()
    EndpointSettings(FLEET, host=host, token="t", certificate=PEM, private_key=PEM).validate()


def test_half_of_tls_is_refused() -> None:
    with pytest.raises(ConfigError, match="both a certificate and its private key"):
        EndpointSettings(FLEET, certificate=PEM).validate()


def test_a_token_is_read_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(ConfigError, match="no token can be read"):
        read_token(path)
    path.write_text("secret\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == "secret"
    path.write_text(" \n")
    with pytest.raises(ConfigError, match="holds no token"):
        read_token(path)
