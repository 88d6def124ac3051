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

from trims.core.errors import AddressRefusedError, ConfigError, NotSupportedError
from trims.sources.buckets import Bucket, chosen, client_options, endpoint_of, host_of, is_yes, retries
from trims.sources.http import Location
from trims.sources.store_errors import setting_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import AzureConfig

    from trims.sources.base import SourceSettings
    from trims.sources.buckets import ObjectAddress

_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_SIGNATURES = ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN")
#: Credentials that belong to one account; the others are good for all that they have rights in.
_OF_ONE_ACCOUNT = (*_SIGNATURES, "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY")
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
    "AZURE_DISABLE_TAGGING",
)


class AzureBucket(Bucket):
    """A container of Azure Blob Storage.

    Args:
        address: Names the container, and perhaps the account.
        settings: Variables, and the client that reads.
        signed_for_s: Seconds for which a signed address is good.

    Raises:
        ConfigError: No account is named, or a setting cannot be used.
        AddressRefusedError: The credentials belong to another account.
        NotSupportedError: A setting changes reads in a way that is not supported.
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
        account = self._account(address, environment)
        endpoint = endpoint_of(environment, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        self.http = settings.http.naming(host_of(endpoint))
        self._public = is_yes(environment, "AZURE_SKIP_SIGNATURE")
        self._sas = next(filter(None, map(environment.get, _SIGNATURES)), "").removeprefix("?")
        options: dict[str, Any] = {
            "account_name": account,
            "client_options": client_options(endpoint, environment),
            "retry_config": retries(),
            **({"endpoint": endpoint} if endpoint else {}),
        }
        config = {**chosen(environment, _VARIABLES), "azure_skip_signature": str(self._public).lower()}
        with setting_errors(self.name, self.looked_in):
            #: Only writes addresses, for requests that nothing signs, or a signature of the operator's.
            self._writer = AzureStore(self.name, account_key=_NO_KEY, **options)
            self.store = AzureStore(self.name, config=cast("AzureConfig", config), **options)

    def _account(self, address: ObjectAddress, environment: Mapping[str, str]) -> str:
        """Return the name of the account. Credentials that belong to one account are not sent to another one."""
        own = next(filter(None, map(environment.get, _ACCOUNTS)), "")
        account = address.account or own
        if not account:
            raise ConfigError(f"{self.address(address.key)}: no account is named: set AZURE_STORAGE_ACCOUNT_NAME")
        if own and account != own and any(map(environment.get, _OF_ONE_ACCOUNT)):
            raise AddressRefusedError(
                f"{self.address(address.key)} is in the account {account}, and the key or signature in the environment "
                f"belongs to {own}: set AZURE_STORAGE_ACCOUNT_NAME and the credentials of {account}"
            )
        return account

    def signed(self, method: str, key: str) -> Location:
        """See `Bucket.signed`."""
        if self._public or self._sas:
            plain = obstore.sign(self._writer, "GET", key, timedelta(seconds=1)).partition("?")[0]
            return Location(plain if self._public else f"{plain}?{self._sas}")
        return Location(self.by_library(method, key), good_for_s=self.signed_for_s)

    def is_folder(self, headers: Mapping[str, str]) -> bool:
        """See `Bucket.is_folder`: accounts with a hierarchical namespace have folders."""
        kind = headers.get("x-ms-resource-type", ""), headers.get("x-ms-meta-hdi_isfolder", "")
        return "directory" in kind or "true" in kind

    def unreadable(self, headers: Mapping[str, str]) -> str:
        """See `Bucket.unreadable`."""
        archived = headers.get("x-ms-access-tier") == "Archive"
        return "it is in the archive tier; set its tier to hot, and wait until it is there" if archived else ""

    def checksums(self, headers: Mapping[str, str]) -> dict[str, str]:
        """See `Bucket.checksums`. Azure states MD5 at most, which proves nothing against those who mean harm."""
        del headers
        return {}


_NO_KEY = base64.b64encode(b"none").decode()
