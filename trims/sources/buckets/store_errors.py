"""Errors of the library that speaks to object stores, as errors of the tree.

The library's texts name addresses with their queries, which may hold signatures: nothing of them is passed on but the
status, the store's own code, and the first line without addresses.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from obstore.exceptions import (
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    ConfigError,
    SourceRefusedError,
    SourceUnavailableError,
    TrimsError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_REGION = re.compile(r"<Region>([\w-]+)</Region>")
_ADDRESS = re.compile(r"\b\w+://\S+")
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_OTHER_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
#: Codes of refusals, some of which come with status 400.
_REFUSALS = frozenset(
    {
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidAuthenticationInfo",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "RequestTimeTooSkewed",
    }
)
#: Words in texts about credentials that could not be had, from services of the machine or from files.
_NO_CREDENTIALS = ("token request", "service account", "credential", "Generating SAS keys")
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})


def refused(text: str, looked_in: str) -> SourceRefusedError:
    """Return the error for a refusal, which says where credentials were looked for."""
    return SourceRefusedError(f"{text}; credentials were looked for in {looked_in}")


def other_region(bucket: str, region: str, asked: str) -> ConfigError:
    """Return the error for a bucket that lies in another region than the requests were signed for."""
    where = f"in the region {region}" if region else "in another region"
    return ConfigError(f"the bucket {bucket} is {where}, and was asked for in {asked}: set AWS_REGION to its region")


@contextlib.contextmanager
def setting_errors(bucket: str, looked_in: str) -> Iterator[None]:
    """Raise ConfigError in place of the library's errors about settings: behind their first clause may be a secret."""
    try:
        yield
    except (BaseError, OSError, ValueError, TypeError) as error:
        clauses = str(error).partition("\n")[0].split(": ")
        said = clauses[1] if len(clauses) > 1 else type(error).__name__
        raise ConfigError(
            f"the settings for the bucket {bucket} cannot be used: {said}; credentials come from {looked_in}"
        ) from None


@contextlib.contextmanager
def tree_errors(name: str, bucket: str, looked_in: str, region: str = "") -> Iterator[None]:
    """Raise errors of the tree in place of the library's, and have refusals say where credentials were looked for.

    Args:
        name: Address that is worked on, without secrets.
        bucket: Name of its bucket.
        looked_in: Places where credentials are looked for.
        region: Region for which requests are signed; empty if the store has none.
    """
    try:
        yield
    except SourceRefusedError as error:
        text = str(error) if name in str(error) else f"{name}: {error}"
        raise (SourceRefusedError(text) if looked_in in text else refused(text, looked_in)) from None
    except TrimsError:
        raise
    except (BaseError, FileNotFoundError, ValueError) as error:  # which are all that the library raises
        raise translated(error, name, bucket, looked_in, region) from None


def translated(error: Exception, name: str, bucket: str, looked_in: str, region: str) -> TrimsError:
    """Return the error of the tree for one of the library's; no part of it holds an address of the library's."""
    text = str(error)
    first = _ADDRESS.sub("the store", text.partition("\n")[0])
    found, code = _STATUS.search(text), _code(text)
    status = int(found[1]) if found else 0
    said = f"the store answers {status}{f' ({code})' if code else ''}" if status else first
    if code in _OTHER_REGION or "redirect without LOCATION" in text:
        named = _REGION.search(text)
        return other_region(bucket, named[1] if named else "", region)
    if status in (401, 403) or code in _REFUSALS or isinstance(error, PermissionDeniedError | UnauthenticatedError):
        text = f"{name}: {said}: the credentials are wrong, or may not do this in the bucket {bucket}"
        return refused(text, looked_in)
    if any(word in first for word in _NO_CREDENTIALS):
        return refused(f"{name}: no credentials for the bucket {bucket} could be had: {first}", looked_in)
    if code in _NO_BUCKET:
        return ArtifactNotFoundError(f"{name}: there is no bucket {bucket}")
    return _of_store(error, status, name, said)


def _of_store(error: Exception, status: int, name: str, said: str) -> TrimsError:
    if isinstance(error, FileNotFoundError) or status == 404:
        return ArtifactNotFoundError(f"{name} is not there: {said}")
    if isinstance(error, PreconditionError) or status == 412:
        return ArtifactChangedError(f"{name} is another one than when it was looked at: {said}")
    if status in _BUSY or "HTTP error" in said:
        return SourceUnavailableError(f"{name}: {said}")
    return ArtifactError(f"{name}: {said}")


def _code(text: str) -> str:
    found = _CODE.search(text)
    return found[1] if found else ""
