"""Tokens, tenants and certificate of a running endpoint, taken over when their files change.

HTTP has its certificate in the context that its connections share, and gRPC asks for it at each handshake: both have
the same bytes, which were proven before.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import grpc

from trims.core.errors import ConfigError
from trims.followed_files import LOOK_S, FollowedFiles, read_whole
from trims.tenants import read_tenants
from trims_predictors.endpoint.settings import read_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_predictors.endpoint.principals import Principals
    from trims_predictors.endpoint.settings import EndpointSettings

_Pair = tuple[bytes, bytes]


class ServerCertificate:
    """Certificate of an endpoint with its key.

    Args:
        certificate: File with the chain.
        private_key: File with its key.

    Raises ConfigError, OSError.
    """

    def __init__(self, certificate: Path, private_key: Path) -> None:
        self.paths = certificate, private_key
        self._pair = self._proven()
        self._context: ssl.SSLContext | None = None

    def connect(self, context: ssl.SSLContext) -> None:
        """Have the context of HTTP's connections follow. Called in the event loop, as `read`'s result is."""
        self._context = context
        _load(context, self._pair)

    def for_grpc(self) -> grpc.ServerCredentials:
        """Return credentials that are asked for at each handshake."""
        return grpc.dynamic_ssl_server_credentials(self._configuration(), self._configuration)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        certificate, key = self._pair
        return grpc.ssl_server_certificate_configuration([(key, certificate)])

    def read(self) -> Callable[[], None]:
        """Read and prove the files. Return what takes them over. Raises ConfigError, OSError."""
        return partial(self._take, self._proven())

    def _proven(self) -> _Pair:
        certificate, key = self.paths
        pair = read_whole(certificate, "certificate")[0], read_whole(key, "key")[0]
        try:
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"{certificate} and {key} are no certificate with its key ({error}); both must be PEM, belong together "
                "and need no password"
            ) from error
        return pair

    def _take(self, pair: _Pair) -> None:
        self._pair = pair
        if self._context is not None:
            _load(self._context, pair)


def _load(context: ssl.SSLContext, pair: _Pair) -> None:
    """Load a certificate and its key from the bytes that were read: the files may be other ones by now."""
    files = [os.memfd_create("trims-certificate", os.MFD_CLOEXEC) for _ in pair]
    try:
        for file, data in zip(files, pair, strict=True):
            os.write(file, data)
        chain, key = (f"/proc/self/fd/{file}" for file in files)
        context.load_cert_chain(chain, key, password="")  # or OpenSSL would ask the terminal for one
    finally:
        for file in files:
            os.close(file)


class Renewal:
    """Follows the files of an endpoint for as long as `run` runs.

    Args:
        settings: Say which files.
        certificate: Certificate of the doors; None without TLS.
    """

    def __init__(self, settings: EndpointSettings, callers: Principals, certificate: ServerCertificate | None) -> None:
        self._settings, self._callers = settings, callers
        self._followed = []
        named = [path for path in (settings.token_file, settings.tenants_file) if path is not None]
        if named:
            self._followed.append(FollowedFiles(" or ".join(map(str, named)), named, self._read_callers))
        if certificate is not None:
            paths = certificate.paths
            self._followed.append(FollowedFiles(" or ".join(map(str, paths)), paths, certificate.read))

    async def run(self) -> None:
        """Look every second until the task is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once, beside the event loop, and take over in it."""
        for each in self._followed:
            take = await asyncio.to_thread(each.look)
            if take is not None:
                take()

    def _read_callers(self) -> Callable[[], None]:
        settings = self._settings
        token = settings.token if settings.token_file is None else read_token(settings.token_file)
        found = read_tenants(settings.tenants_file)
        replace(settings, token=token, tenants=found).validate()
        return partial(self._callers.replace, token, settings.tenants.renewed(found))
