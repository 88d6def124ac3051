"""The schemes `s3:`, `gs:`, `az:`, `abfs:` and `abfss:`: objects in the stores of clouds, read from signed addresses.

An address names an object, or a prefix: all objects below it. Signed addresses are secrets with an end; they are made
again when it is near, or when one is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import ArtifactNotFoundError, CallerError
from trims.sources.buckets.azure import AzureBucket
from trims.sources.buckets.bucket import SIGNED_FOR_S, ObjectAddress
from trims.sources.buckets.gcs import GcsBucket
from trims.sources.buckets.s3 import S3Bucket
from trims.sources.http.ranged import RangedFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.sources.base import RemoteFile
    from trims.sources.buckets.bucket import Bucket
    from trims.sources.http.client import Location
    from trims.sources.settings import SourceSettings

_CLOUDS: dict[str, Callable[[ObjectAddress, SourceSettings, float], Bucket]] = {
    "s3": S3Bucket,
    "gs": GcsBucket,
    "az": AzureBucket,
    "abfs": AzureBucket,
    "abfss": AzureBucket,
}
#: Schemes of object stores.
SCHEMES = tuple(_CLOUDS)


def open_bucket(
    settings: SourceSettings, scheme: str, address: str, signed_for_s: float = SIGNED_FOR_S
) -> tuple[Bucket, ObjectAddress]:
    """Return the bucket of an address, and the address taken apart.

    Raises CallerError for an address that is none of the scheme, ConfigError, and as `Opened.fill`.
    """
    parsed = ObjectAddress.parse(address)
    if parsed.scheme != scheme:
        raise CallerError(f"an address of the scheme {parsed.scheme!r} was given to the source of {scheme}://")
    return _CLOUDS[scheme](parsed, settings, signed_for_s), parsed


class ObjectSource:
    """One scheme of object stores; see `Source`.

    Args:
        settings: Variables with credentials and endpoints, and the client that reads.
        scheme: One of `SCHEMES`.
        signed_for_s: Seconds for which a signed address is good.
    """

    def __init__(self, settings: SourceSettings, scheme: str, *, signed_for_s: float = SIGNED_FOR_S) -> None:
        if scheme not in _CLOUDS:
            raise CallerError(f"{scheme}:// is no scheme of an object store: {', '.join(SCHEMES)} are")
        self._settings = settings
        self._scheme = scheme
        self._signed_for_s = signed_for_s

    def open(self, address: str) -> RangedFiles:
        """See `Source.open`."""
        bucket, parsed = open_bucket(self._settings, self._scheme, address, self._signed_for_s)
        try:
            files, under = _look(bucket, parsed)
        except BaseException:
            bucket.http.close()
            raise

        def locate(file: RemoteFile) -> Location:
            return bucket.location(under + file.name)

        return RangedFiles(bucket.http, address, files, locate)


def _look(bucket: Bucket, address: ObjectAddress) -> tuple[list[RemoteFile], str]:
    """Return the files of an address, and what stands before their names in their keys."""
    key = address.key
    if not address.folder:
        file = bucket.look(key)
        if file is not None:
            return [file], key[: len(key) - len(file.name)]
    files = bucket.look_below(key)
    if not files:
        raise ArtifactNotFoundError(
            f"{bucket.address(key)} is not there: the bucket {bucket.name} has no object of this name and none below"
        )
    return files, f"{key}/" if key else ""
