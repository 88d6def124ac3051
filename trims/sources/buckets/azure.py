"""Containers of Azure Blob Storage.

The account is named by `AZURE_STORAGE_ACCOUNT_NAME` or `AZURE_STORAGE_ACCOUNT`, or by an address
`abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY`. Credentials: a token, the account's key, a shared access signature,
a service principal, a workload's identity, the Azure command, the machine's managed identity; or a connection string,
which has a key or a signature and stands above their variables. `AZURE_STORAGE_ENDPOINT` names another server,
`AZURE_SKIP_SIGNATURE=true` reads public containers. The library also reads variables of this process; those of the
mapping that a source is made with come first.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlencode, urlsplit

import obstore
from obstore.store import AzureStore

from trims.core.errors import AddressRefusedError, ConfigError, NotSupportedError
from trims.sources.buckets.bucket import Bucket, chosen, client_options, endpoint_of, host_of, is_yes, retries
from trims.sources.buckets.store_errors import setting_errors
from trims.sources.http.client import Location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import AzureConfig

    from trims.sources.buckets.bucket import ObjectAddress
    from trims.sources.settings import SourceSettings

_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY")
_SIGNATURES = ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN")
#: Credentials that belong to one account; the others are good for all that they have rights in.
_OF_ONE_ACCOUNT = (*_SIGNATURES, *_KEYS)
_VARIABLES = (
    *_SIGNATURES,
    *_KEYS,
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
#: Fields of a connection string, in lower case, as variables.
_CONNECTION_FIELDS = {
    "accountname": "AZURE_STORAGE_ACCOUNT_NAME",
    "accountkey": "AZURE_STORAGE_ACCOUNT_KEY",
    "sharedaccesssignature": "AZURE_STORAGE_SAS_TOKEN",
    "blobendpoint": "AZURE_STORAGE_ENDPOINT",
}
#: Version of the protocol that signatures and tokens are sent for.
_VERSION = "2023-11-03"
#: Signatures begin earlier than now: the store's clock may be behind.
_CLOCKS_DIFFER_BY = timedelta(minutes=10)


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
        "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY, AZURE_STORAGE_TOKEN, "
        "AZURE_CLIENT_ID with AZURE_CLIENT_SECRET, AZURE_FEDERATED_TOKEN_FILE, and the managed identity of the machine "
        "(a public container needs none: AZURE_SKIP_SIGNATURE=true)"
    )

    def __init__(self, address: ObjectAddress, settings: SourceSettings, signed_for_s: float) -> None:
        environment = {**settings.environment, **_connected(settings.environment)}
        self.name, self.signed_for_s = address.bucket, signed_for_s
        if environment.get("AZURE_ENCRYPTION_KEY"):
            raise NotSupportedError("AZURE_ENCRYPTION_KEY is set: blobs with keys of their own are not supported")
        self._account = account = self._account_of(address, environment)
        endpoint = endpoint_of(environment, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        self.http = settings.http.naming(host_of(endpoint))
        self._public = is_yes(environment, "AZURE_SKIP_SIGNATURE")
        self._token = environment.get("AZURE_STORAGE_TOKEN", "")
        self._key = next(filter(None, map(environment.get, _KEYS)), "")
        self._sas = next(filter(None, map(environment.get, _SIGNATURES)), "").removeprefix("?")
        options: dict[str, Any] = {
            "account_name": account,
            "client_options": client_options(endpoint, settings),
            "retry_config": retries(settings),
            **({"endpoint": endpoint} if endpoint else {}),
        }
        config = {**chosen(environment, _VARIABLES), "azure_skip_signature": str(self._public).lower()}
        with setting_errors(self.name, self.looked_in):
            #: Only writes addresses, for requests that nothing signs, or a signature of the operator's.
            self._writer = AzureStore(self.name, account_key=_NO_KEY, **options)
            self.store = AzureStore(self.name, config=cast("AzureConfig", config), **options)

    def _account_of(self, address: ObjectAddress, environment: Mapping[str, str]) -> str:
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
        """See `Bucket.signed`. Raises NotSupportedError for a name that the library signs wrongly."""
        plain = obstore.sign(self._writer, "GET", key, timedelta(seconds=1)).partition("?")[0]
        if self._public:
            return Location(plain)
        if self._token:  # which signs nothing, and is good for the request itself
            return Location(plain, {"Authorization": f"Bearer {self._token}", "x-ms-version": _VERSION})
        if self._key:
            return Location(f"{plain}?{self._signature(plain, method)}", good_for_s=self.signed_for_s)
        if self._sas:
            return Location(f"{plain}?{self._sas}")
        path = urlsplit(plain).path
        if path != unquote(path):  # signed as it is escaped, and compared by the store as it is not
            raise NotSupportedError(
                f"{self.address(key)}: a name with blanks, or with other letters that an address escapes, cannot be "
                "read with a principal or an identity: use AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or "
                "AZURE_STORAGE_TOKEN, or rename the blob"
            )
        return Location(self.by_library(method, key), good_for_s=self.signed_for_s)

    def _signature(self, url: str, method: str) -> str:
        """Return the parameters of a shared access signature for a blob.

        Its parts and their order: https://learn.microsoft.com/rest/api/storageservices/create-service-sas. The library
        signs names as they are escaped in addresses, which the store refuses.
        """
        now = datetime.now(timezone.utc)
        begins, ends = (
            f"{moment:%Y-%m-%dT%H:%M:%SZ}"
            for moment in (now - _CLOCKS_DIFFER_BY, now + timedelta(seconds=self.signed_for_s))
        )
        permission, path = ("d" if method == "DELETE" else "r"), unquote(urlsplit(url).path)
        in_path = path.startswith(f"/{self._account}/")  # as in addresses of emulators
        resource = f"/blob{path}" if in_path else f"/blob/{self._account}{path}"
        signed = "\n".join([permission, begins, ends, resource, "", "", "", _VERSION, "b", *[""] * 7])
        digest = hmac.new(base64.b64decode(self._key), signed.encode(), hashlib.sha256).digest()
        fields = {
            "sv": _VERSION,
            "sr": "b",
            "sp": permission,
            "st": begins,
            "se": ends,
            "sig": base64.b64encode(digest),
        }
        return urlencode(fields)

    def for_look(self, key: str) -> Location:
        """See `Bucket.for_look`. The library signs `HEAD` with no permission; that to read covers a look, too."""
        return self.signed("GET", key)

    def give_up_parts(self, key: str) -> int:
        """See `Bucket.give_up_parts`. Writing a blob whole drops its parts; where there is a blob, it has done so."""
        if self.look(key) is not None:
            return 0
        with self.errors(key):
            obstore.put(self.store, key, b"", use_multipart=False)
        self.remove(key)
        return 1

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


def _connected(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a connection string stands for; none without one. Raises ConfigError."""
    text = environment.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if not text:
        return {}
    fields = {name.strip().lower(): value for name, _, value in (part.partition("=") for part in text.split(";"))}
    found = {variable: fields.get(name, "") for name, variable in _CONNECTION_FIELDS.items()}
    endpoint, account = urlsplit(found["AZURE_STORAGE_ENDPOINT"]), found["AZURE_STORAGE_ACCOUNT_NAME"]
    if not account:  # one with a signature need not name it: it is the first part of the host, or the path
        account = endpoint.path.strip("/") or (endpoint.hostname or "").partition(".")[0]
    if not account or not (found["AZURE_STORAGE_ACCOUNT_KEY"] or found["AZURE_STORAGE_SAS_TOKEN"]):
        raise ConfigError(
            "AZURE_STORAGE_CONNECTION_STRING has no account, or neither AccountKey nor SharedAccessSignature: copy it "
            "from the account's access keys"
        )
    if not endpoint.netloc and (suffix := fields.get("endpointsuffix")):
        protocol = fields.get("defaultendpointsprotocol") or "https"
        found["AZURE_STORAGE_ENDPOINT"] = f"{protocol}://{account}.blob.{suffix}"
    return {**dict.fromkeys((*_ACCOUNTS, *_OF_ONE_ACCOUNT, "AZURE_ENDPOINT"), ""), **found, _ACCOUNTS[0]: account}
