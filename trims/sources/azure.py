"""Containers of Azure Blob Storage.

The account is named by `AZURE_STORAGE_ACCOUNT_NAME` or `AZURE_STORAGE_ACCOUNT`, or by an address
`abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY`. Credentials: the account's key, a shared access signature, a token,
a service principal, a workload's identity, the Azure command, the machine's managed identity. `AZURE_STORAGE_ENDPOINT`
names another server, `AZURE_SKIP_SIGNATURE=true` reads public containers. The library also reads variables of this
process; those of the mapping that a source is made with come first.
"""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import obstore
from obstore.store import AzureStore

from trims.core.errors import ConfigError, NotSupportedError
from trims.sources.buckets import Bucket, chosen, client_options, host_of, is_yes, retries
from trims.sources.http import Location
from trims.sources.store_errors import setting_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import AzureConfig

    from trims.sources.base import SourceSettings
    from trims.sources.buckets import ObjectAddress

_SIGNATURES = ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN")
_VARIABLES = (
    *_SIGNATURES,
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_TENANT_ID",
    "AZURE_STORAGE_AUTHORITY_HOST",
    "AZURE_AUTHORITY_HOST",
    "AZURE_CREDENTIAL_TYPE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_USE_AZURE_CLI",
    "AZURE_MSI_ENDPOINT",
    "AZURE_IDENTITY_ENDPOINT",
    "AZURE_OBJECT_ID",
    "AZURE_MSI_RESOURCE_ID",
    "AZURE_SKIP_SIGNATURE",
    "AZURE_DISABLE_TAGGING",
)


class AzureBucket(Bucket):
    """A container of Azure Blob Storage.

    Args:
        address: Names the container, and perhaps the account.
        settings: Variables, and the client that reads.
        signed_for_s: Seconds for which a signed address is good.

    Raises ConfigError without an account, NotSupportedError, and as `Opened.fill`.
    """

    scheme = "az"
    looked_in = (
        "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY, AZURE_STORAGE_TOKEN, AZURE_CLIENT_ID with AZURE_CLIENT_"
        "SECRET, AZURE_FEDERATED_TOKEN_FILE, and the managed identity of the machine (a public container needs none: "
        "AZURE_SKIP_SIGNATURE=true)"
    )

    def __init__(self, address: ObjectAddress, settings: SourceSettings, signed_for_s: float) -> None:
        environment = settings.environment
        self.name, self.signed_for_s = address.bucket, signed_for_s
        if environment.get("AZURE_ENCRYPTION_KEY"):
            raise NotSupportedError("AZURE_ENCRYPTION_KEY is set: blobs with keys of their own are not supported")
        account = address.account or next(filter(None, map(environment.get, _ACCOUNTS)), "")
        if not account:
            raise ConfigError(f"{self.address(address.key)}: no account is named: set AZURE_STORAGE_ACCOUNT_NAME")
        endpoint = environment.get("AZURE_STORAGE_ENDPOINT") or environment.get("AZURE_ENDPOINT") or ""
        self.http = settings.http.naming(host_of(endpoint))
        self._public = is_yes(environment, "AZURE_SKIP_SIGNATURE")
        self._sas = next(filter(None, map(environment.get, _SIGNATURES)), "").removeprefix("?")
        options: dict[str, Any] = {
            "account_name": account,
            "client_options": client_options(endpoint),
            "retry_config": retries(),
            **({"endpoint": endpoint} if endpoint else {}),
        }
        config = cast("AzureConfig", chosen(environment, _VARIABLES))
        with setting_errors(self.name, self.looked_in):
            #: Only writes addresses, for requests that nothing signs, or a signature of the operator's.
            self._writer = AzureStore(self.name, account_key=_NO_KEY, **options)
            self.store = AzureStore(self.name, config=config, **options)

    def signed(self, method: str, key: str) -> Location:
        """See `Bucket.signed`."""
        if self._public or self._sas:
            plain = obstore.sign(self._writer, "GET", key, timedelta(seconds=1)).partition("?")[0]
            return Location(plain if self._public else f"{plain}?{self._sas}")
        return Location(self.by_library(method, key), good_for_s=self.signed_for_s)

    def checksums(self, headers: Mapping[str, str]) -> dict[str, str]:
        """See `Bucket.checksums`. Azure states MD5 at most, which proves nothing against those who mean harm."""
        del headers
        return {}


_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_NO_KEY = base64.b64encode(b"none").decode()
