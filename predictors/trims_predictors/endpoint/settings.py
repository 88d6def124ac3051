"""The endpoint's settings, checked at the edge."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError
from trims.followed_files import read_whole
from trims.tenants import Tenants
from trims.wire.keepalive import PING_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims_predictors.deployment.deployment import Settings

#: Letters of a token at most.
_MOST_LETTERS = 4096


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Settings of one endpoint.

    Attributes:
        host: Address or name to listen on.
        port: Port for HTTP; 0 for any free one.
        grpc_port: Port for gRPC; 0 for any free one, None for no gRPC.
        grpc_ping_s: Least seconds between two keepalive pings of a client over gRPC; 0 for any.
        token: Bearer token that every request must bring; None only on loopback.
        tenants: Tenants that have tokens of their own.
        token_file: Where the token was read; followed while the endpoint runs. None if it comes from no file.
        tenants_file: Where the tenants were read; followed, too.
        certificate: File for TLS, with the chain.
        most_body_bytes: Larger requests are refused.
        shared_memory: Whether clients may register regions of system shared memory.
        environments: Framework -> interpreter, for those that have an environment of their own.
        environments_dir: Where `trims env create` makes environments; None for none.
        preload: Frameworks whose templates start at once.
        model_variables: Environment variables that manifests may name, with their values.
        supervised: Whether it ends when its standard input is closed: by the process that has started it.
        address_dir: Folder where it leaves its address; None for that of the daemon's sockets.
        drain_s: Seconds that requests have to finish when the endpoint ends.
        log_level: The least that is logged; one of `trims.logs.LEVELS`.
        log_format: One of `trims.logs.FORMS`.
        access_log: Whether each request is a line of the log.
    """

    pool: Settings
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    grpc_ping_s: float = PING_S
    token: str | None = None
    tenants: Tenants = field(default_factory=Tenants)
    token_file: Path | None = None
    tenants_file: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    most_body_bytes: int = 256 << 20
    shared_memory: bool = False
    environments: Mapping[str, Path] = field(default_factory=dict)
    environments_dir: Path | None = None
    preload: tuple[str, ...] = ()
    model_variables: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    supervised: bool = False
    address_dir: str | None = None
    drain_s: float = 30.0
    log_level: str = "info"
    log_format: str = "text"
    access_log: bool = False

    def validate(self) -> None:
        """Raise ConfigError if it would listen openly, or misses a half of what belongs together."""
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("TLS needs both a certificate and its private key")
        if self.tenants and self.token is None:
            raise ConfigError(
                "with --tenants the endpoint needs a token of the operator as well (--token-file), or every request "
                "without a token would be the operator's"
            )
        if self.token is not None and (same := self.tenants.of_token(self.token)) is not None:
            raise ConfigError(f"the operator's token is that of tenant {same.name!r} as well; give it another")
        if is_loopback(self.host):
            return
        if self.token is None or self.certificate is None:
            raise ConfigError(
                f"{self.host} can be reached from other machines: it needs a token (--token-file) and TLS "
                "(--certificate, --private-key); without them listen on 127.0.0.1, behind a proxy that has both"
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address. Of names only `localhost` is."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """Return the token in a file, without space round it.

    Raises ConfigError if it holds none, or more than one line, or if other users may read it.
    """
    data, status = read_whole(path, "token")
    token = data.strip().decode("ascii", "replace")
    if not token:
        raise ConfigError(f"{path} holds no token; write one, such as the output of `openssl rand -hex 32`")
    if len(token) > _MOST_LETTERS or not all(" " <= each <= "~" for each in token):
        raise ConfigError(
            f"{path} holds no token, which is one line of ASCII letters, {_MOST_LETTERS} at most; tokens of several "
            "callers are for a tenants file (--tenants)"
        )
    if status.st_mode & 0o077:
        raise ConfigError(f"other users may read the token in {path}; `chmod 600 {path}`")
    return token
