"""Credentials of AWS, from its usual places, and requests signed with them.

The order: keys in the environment; the profile (`AWS_PROFILE`, else `default`) of the files of configuration, with the
roles and programs that it names; then the chain of the AWS SDK: single sign-on, web identity, and the services for
containers and machines.

Variables are those of the mapping that a source is made with. Only the chain of the SDK, and a program that a profile
names (`credential_process`), read the environment of this process, which cannot be passed to them.
"""

from __future__ import annotations

import configparser
import os
import threading
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from awscrt import auth, http
from awscrt.exceptions import AwsCrtError

from trims.core.errors import ConfigError, SourceRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import S3Credential

#: Places where credentials are looked for, for people.
LOOKED_IN = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile (AWS_PROFILE) of ~/.aws, single sign-on, web identity, "
    "and the services of the machine (a public bucket needs none: AWS_SKIP_SIGNATURE=true)"
)
#: Seconds for services of a machine, or of a cloud, to hand out credentials.
_WAIT_S = 30.0
#: Time before the end of credentials at which others are asked for.
_AHEAD = timedelta(minutes=5)


class AwsCredentials:
    """Credentials that are asked for again before they end. Safe to use from several threads.

    Args:
        environment: Variables as the operator has set them.

    Raises ConfigError for a profile that is not there, or half a key.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._environment = environment
        self._provider: auth.AwsCredentialsProvider | None = None
        self._known: auth.AwsCredentials | None = None
        self._files = [
            (kind, environment.get(variable) or os.path.join(environment.get("HOME", ""), ".aws", kind))
            for kind, variable in (("config", "AWS_CONFIG_FILE"), ("credentials", "AWS_SHARED_CREDENTIALS_FILE"))
        ]
        self._static = self._keys_of_environment()
        self._profile = "" if self._static else self._find_profile()

    def current(self) -> auth.AwsCredentials:
        """Return credentials that are good for some minutes. Blocks. Raises SourceRefusedError."""
        with self._lock:
            known = self._known
            if known is None or _ends_soon(known):
                if self._provider is None:
                    self._provider = self._make_provider()
                self._known = known = self._ask(self._provider)
            return known

    def for_store(self) -> S3Credential:
        """Return credentials as the library for stores wants them. Raises SourceRefusedError."""
        found = self.current()
        return {
            "access_key_id": found.access_key_id,
            "secret_access_key": found.secret_access_key,
            "token": found.session_token,
            "expires_at": _end(found),
        }

    def good_for_s(self) -> float:
        """Return the seconds for which the credentials are good: no signature made with them is good for longer."""
        end = _end(self.current())
        return float("inf") if end is None else (end - datetime.now(timezone.utc)).total_seconds()

    def sign(self, method: str, url: str, headers: Mapping[str, str], region: str) -> dict[str, str]:
        """Return headers of a request without a body, and those that sign all of them."""
        target = urlsplit(url)
        given = http.HttpHeaders([("host", _host(target.scheme, target.netloc)), *headers.items()])
        found = self.current()
        static = auth.AwsCredentialsProvider.new_static(
            found.access_key_id, found.secret_access_key, found.session_token
        )
        config = auth.AwsSigningConfig(
            algorithm=auth.AwsSigningAlgorithm.V4,
            signature_type=auth.AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=static,
            region=region,
            service="s3",
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value=auth.AwsSignedBodyValue.EMPTY_SHA256,
            signed_body_header_type=auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        )
        path = f"{target.path}?{target.query}" if target.query else target.path
        request = http.HttpRequest(method, path, given)
        signed = auth.aws_sign_request(request, config).result(_WAIT_S)
        return {name: value for name, value in signed.headers if name.lower() != "host"}

    def _keys_of_environment(self) -> auth.AwsCredentialsProvider | None:
        key, secret = (self._environment.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
        if bool(key) != bool(secret):
            raise ConfigError("one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set: set both, or none")
        if not key:
            return None
        token = self._environment.get("AWS_SESSION_TOKEN") or None
        return auth.AwsCredentialsProvider.new_static(key, secret, token)

    def _find_profile(self) -> str:
        """Return the profile to use; empty for none. Raises ConfigError if one is asked for that is in no file."""
        asked = self._environment.get("AWS_PROFILE")
        name = asked or "default"
        there = False
        for kind, path in self._files:
            parser = configparser.RawConfigParser(default_section="\0", strict=False)
            try:
                parser.read(path, encoding="utf-8")
            except (configparser.Error, UnicodeDecodeError):
                raise ConfigError(f"{path} is no file of profiles of AWS") from None  # whose text has secrets
            sections = (name, f"profile {name}") if kind == "config" else (name,)
            there = there or any(map(parser.has_section, sections))
        if asked and not there:
            paths = " and ".join(path for _, path in self._files)
            raise ConfigError(f"AWS_PROFILE is {asked!r}, and there is no such profile in {paths}")
        return name if there else ""

    def _make_provider(self) -> auth.AwsCredentialsProvider:
        if self._static is not None:
            return self._static
        chain = []
        if self._profile:
            paths = {f"{kind}_filepath": path for kind, path in self._files}
            chain.append(auth.AwsCredentialsProvider.new_profile(profile_name=self._profile, **paths))
        chain.append(auth.AwsCredentialsProvider.new_default_chain())
        return auth.AwsCredentialsProvider.new_chain(chain)

    def _ask(self, provider: auth.AwsCredentialsProvider) -> auth.AwsCredentials:
        try:
            return provider.get_credentials().result(_WAIT_S)
        except (AwsCrtError, FutureTimeoutError) as error:
            why = getattr(error, "name", "") or f"nothing came within {_WAIT_S:g} s"
            raise SourceRefusedError(
                f"no credentials for S3 were found ({why}); credentials were looked for in {LOOKED_IN}"
            ) from None


def _host(scheme: str, netloc: str) -> str:
    """Return the host as the client sends it: without the scheme's own port."""
    return netloc.removesuffix(":443" if scheme == "https" else ":80")


def _end(found: auth.AwsCredentials) -> datetime | None:
    end: datetime | None = found.expiration
    return end if end is None or end.tzinfo else end.replace(tzinfo=timezone.utc)


def _ends_soon(found: auth.AwsCredentials) -> bool:
    end = _end(found)
    return end is not None and end - datetime.now(timezone.utc) < _AHEAD
