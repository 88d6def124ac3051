"""Buckets of S3, and of stores that speak its protocol.

Variables: `AWS_ENDPOINT_URL_S3` and `AWS_ENDPOINT_URL` name another store; `AWS_REGION` (else `AWS_DEFAULT_REGION`) the
region, which is found out where it is not stated; `AWS_SKIP_SIGNATURE=true` reads public buckets. The library also
reads variables of this process that begin with `AWS_`; those of the mapping that a source is made with come first.
"""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import obstore
from obstore.store import S3Store

from trims.core.errors import ArtifactNotFoundError, NotSupportedError, SourceUnavailableError
from trims.sources.buckets.aws_credentials import LOOKED_IN, AwsCredentials
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
from trims.sources.buckets.store_errors import other_region, setting_errors
from trims.sources.http.client import Location, check_status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import S3Credential

    from trims.sources.buckets.bucket import ObjectAddress
    from trims.sources.http.client import Answer, Http
    from trims.sources.settings import SourceSettings

#: Server that knows the region of every bucket.
ANY_REGION_URL = "https://s3.us-east-1.amazonaws.com"
_REGION = re.compile(r"[a-z0-9-]+\Z")
_DEFAULT_REGION = "us-east-1"
#: One upload in a listing, and its fields, whose order differs from store to store.
_UPLOAD, _FIELD = re.compile(r"<Upload>(.*?)</Upload>", re.DOTALL), re.compile(r"<(Key|UploadId)>(.*?)</", re.DOTALL)
_REGION_HEADER = "x-amz-bucket-region"
#: Checksums that S3 states, with their lengths in bytes.
_CHECKSUMS = {"sha256": 32, "crc64nvme": 8, "crc32c": 4}
_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
#: Variables that are passed to the library.
_VARIABLES = (
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_CHECKSUM_ALGORITHM",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_DISABLE_TAGGING",
    "AWS_UNSIGNED_PAYLOAD",
)
#: Variables that change how objects are read in ways that signed addresses have none for.
_REFUSED = ("AWS_SSE_CUSTOMER_KEY_BASE64", "AWS_REQUEST_PAYER", "AWS_S3_EXPRESS")


class S3Bucket(Bucket):
    """A bucket of S3. Making one may ask for its region.

    Args:
        address: Names the bucket.
        settings: Variables, and the client that reads.
        signed_for_s: Seconds for which a signed address is good.

    Raises ConfigError, NotSupportedError, and as `Opened.fill`.
    """

    scheme = "s3"
    checksum = "crc64nvme"
    looked_in = LOOKED_IN

    def __init__(self, address: ObjectAddress, settings: SourceSettings, signed_for_s: float) -> None:
        environment = settings.environment
        self.name, self.signed_for_s = address.bucket, signed_for_s
        self._check(environment)
        endpoint = endpoint_of(environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        self.http = settings.http.naming(host_of(endpoint))
        self._credentials = None if is_yes(environment, "AWS_SKIP_SIGNATURE") else AwsCredentials(environment)
        try:
            self.region = self._region(environment, endpoint)
            self._writer, self.store = self._make_stores(settings, endpoint)
        except BaseException:
            self.http.close()
            raise

    def signed(self, method: str, key: str) -> Location:
        """See `Bucket.signed`."""
        if self._credentials is None:
            return Location(self._plain(key))
        good_for_s = min(self._credentials.good_for_s(), self.signed_for_s)
        return Location(self.by_library(method, key), good_for_s=good_for_s)

    def for_look(self, key: str) -> Location:
        """See `Bucket.for_look`. Checksums come only if a header asks for them, which a signature must cover."""
        url, asking = self._plain(key), {"x-amz-checksum-mode": "ENABLED"}
        if self._credentials is None:
            return Location(url, asking)
        return Location(url, self._credentials.sign("HEAD", url, asking, self.region))

    def checksums(self, headers: Mapping[str, str]) -> dict[str, str]:
        """See `Bucket.checksums`."""
        if headers.get("x-amz-checksum-type", "FULL_OBJECT") != "FULL_OBJECT":
            return {}
        found = {
            name: hexadecimal(headers.get(f"x-amz-checksum-{name}", ""), nbytes) for name, nbytes in _CHECKSUMS.items()
        }
        return {name: digits for name, digits in found.items() if digits}

    def unreadable(self, headers: Mapping[str, str]) -> str:
        """See `Bucket.unreadable`."""
        kept = headers.get("x-amz-storage-class", "")
        restored = 'ongoing-request="false"' in headers.get("x-amz-restore", "")
        return f"it is archived ({kept}); restore it first" if kept in _ARCHIVES and not restored else ""

    def give_up_parts(self, key: str) -> int:
        """See `Bucket.give_up_parts`."""
        with self.errors(key):
            base = self._plain("x").removesuffix("/x")
            listed = self._asked("GET", f"{base}?prefix={quote(key, safe='')}&uploads=", key)
            found = [dict(_FIELD.findall(each)) for each in _UPLOAD.findall(listed.body.decode())]
            uploads = [unescape(each.get("UploadId", "")) for each in found if unescape(each.get("Key", "")) == key]
            for upload in uploads:
                self._asked("DELETE", f"{self._plain(key)}?uploadId={quote(upload, safe='')}", key)
        return len(uploads)

    def _asked(self, method: str, url: str, key: str) -> Answer:
        signed = {} if self._credentials is None else self._credentials.sign(method, url, {}, self.region)
        answer = self.http.request(method, url, secret=signed, follow=False)
        check_status(answer, self.address(key))
        return answer

    def _region(self, environment: Mapping[str, str], endpoint: str) -> str:
        stated = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        return stated or (_DEFAULT_REGION if endpoint else self._find_region(self.http))

    def _make_stores(self, settings: SourceSettings, endpoint: str) -> tuple[S3Store, S3Store]:
        """Return a store that only writes addresses, for requests that it cannot sign, and the one that is used."""
        environment = settings.environment
        options: dict[str, Any] = {
            "config": {**chosen(environment, _VARIABLES), **({"aws_endpoint_url_s3": endpoint} if endpoint else {})},
            "region": self.region,
            "client_options": client_options(endpoint, settings),
            "retry_config": retries(settings),
        }
        signing: dict[str, Any] = {"skip_signature": True}
        if self._credentials is not None:
            signing = {"credential_provider": self._credentials.for_store, "skip_signature": False}
        with setting_errors(self.name, self.looked_in):
            writer = S3Store(self.name, credential_provider=_no_key, **options)
            return writer, S3Store(self.name, **signing, **options)

    def _explain(self, answer: Answer, key: str) -> None:
        region = answer.headers.get(_REGION_HEADER, "")
        if answer.status == 301 or (region and region != self.region):
            raise other_region(self.name, region, self.region)
        super()._explain(answer, key)

    def _plain(self, key: str) -> str:
        return obstore.sign(self._writer, "GET", key, timedelta(seconds=1)).partition("?")[0]

    def _check(self, environment: Mapping[str, str]) -> None:
        named = [name for name in _REFUSED if environment.get(name, "false").lower() != "false"]
        if named:
            raise NotSupportedError(f"{named[0]} is set: objects that are read so are not supported; unset it")
        if self.name.endswith("--x-s3"):
            raise NotSupportedError(f"{self.name} is a directory bucket (S3 Express), which is not supported")

    def _find_region(self, http: Http) -> str:
        """Return the region of the bucket; a server of AWS states it also to those who may not read the bucket."""
        answer = http.request("HEAD", f"{ANY_REGION_URL}/{self.name}", follow=False)
        region = answer.headers.get(_REGION_HEADER)
        if answer.status == 404:
            raise ArtifactNotFoundError(f"{self.address('')}: there is no bucket {self.name}")
        if region is None or not _REGION.match(region):
            raise SourceUnavailableError(f"{self.address('')}: the region cannot be found out; set AWS_REGION")
        return region


def _no_key() -> S3Credential:
    return {"access_key_id": "none", "secret_access_key": "none", "token": None, "expires_at": None}
