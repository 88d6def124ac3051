"""Buckets of Google Cloud Storage.

Credentials: `GOOGLE_BEARER_TOKEN`; a key of a service account in `GOOGLE_SERVICE_ACCOUNT_KEY`, or in the file that
`GOOGLE_SERVICE_ACCOUNT` or `GOOGLE_APPLICATION_CREDENTIALS` names; the application default credentials; the machine's
metadata service. `GOOGLE_BASE_URL` names another server, `GOOGLE_SKIP_SIGNATURE=true` reads public buckets. The library
also reads variables of this process; those of the mapping that a source is made with come first.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from obstore.store import GCSStore

from trims.sources.buckets.bucket import (
    Bucket,
    chosen,
    client_options,
    endpoint_of,
    hexadecimal,
    host_of,
    is_yes,
    retries,
)
from trims.sources.buckets.store_errors import setting_errors
from trims.sources.http.client import Location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.sources.buckets.bucket import ObjectAddress
    from trims.sources.settings import SourceSettings

_BASE_URL = "https://storage.googleapis.com"
_DEFAULT_FILE = ".config/gcloud/application_default_credentials.json"
_KEYS = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
)
_VARIABLES = (*_KEYS, "GOOGLE_BASE_URL", "GOOGLE_BEARER_TOKEN")


class GcsBucket(Bucket):
    """A bucket of Google Cloud Storage.

    Args:
        address: Names the bucket.
        settings: Variables, and the client that reads.
        signed_for_s: Seconds for which a signed address is good.

    Raises as `Opened.fill`.
    """

    scheme = "gs"
    checksum = "crc32c"
    looked_in = (
        "GOOGLE_BEARER_TOKEN, GOOGLE_SERVICE_ACCOUNT_KEY, GOOGLE_SERVICE_ACCOUNT, GOOGLE_APPLICATION_CREDENTIALS, "
        f"the application default credentials (~/{_DEFAULT_FILE}), and the metadata service of the machine (a public "
        "bucket needs none: GOOGLE_SKIP_SIGNATURE=true)"
    )

    def __init__(self, address: ObjectAddress, settings: SourceSettings, signed_for_s: float) -> None:
        environment = settings.environment
        self.name, self.signed_for_s = address.bucket, signed_for_s
        endpoint = endpoint_of(environment, "GOOGLE_BASE_URL")
        self._base = endpoint or _BASE_URL
        self._token = environment.get("GOOGLE_BEARER_TOKEN", "")
        self._public = is_yes(environment, "GOOGLE_SKIP_SIGNATURE")
        self.http = settings.http.naming(host_of(endpoint))
        config = {**chosen(environment, _VARIABLES), "google_skip_signature": str(self._public).lower()}
        default = os.path.join(environment.get("HOME", ""), _DEFAULT_FILE)
        if not any(environment.get(name) for name in _KEYS) and os.path.isfile(default):
            config["google_application_credentials"] = default
        with setting_errors(self.name, self.looked_in):
            self.store = GCSStore(
                self.name,
                config=config,  # type: ignore[arg-type]
                client_options=client_options(self._base, settings),
                retry_config=retries(settings),
            )

    def signed(self, method: str, key: str) -> Location:
        """See `Bucket.signed`."""
        plain = f"{self._base}/{self.name}/{quote(key, safe='/~')}"
        if self._public:
            return Location(plain)
        if self._token:  # which signs nothing, and is good for the request itself
            return Location(plain, {"Authorization": f"Bearer {self._token}"})
        return Location(self.by_library(method, key), good_for_s=self.signed_for_s)

    def checksums(self, headers: Mapping[str, str]) -> dict[str, str]:
        """See `Bucket.checksums`: `crc32c=...,md5=...`, in one header or in one for each."""
        stated = ",".join(value for name, value in headers.items() if name.lower() == "x-goog-hash")
        for each in stated.split(","):
            name, _, text = each.strip().partition("=")
            digits = hexadecimal(text, 4)
            if name == "crc32c" and digits:
                return {"crc32c": digits}
        return {}
