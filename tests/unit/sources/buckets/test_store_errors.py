"""Each kind of error of the library for object stores, as an error of the tree without its addresses."""

from __future__ import annotations

import pytest
from obstore.exceptions import BaseError, GenericError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    ConfigError,
    InUseError,
    SourceRefusedError,
    SourceUnavailableError,
    TrimsError,
)
from trims.sources.buckets.store_errors import setting_errors, tree_errors

SIGNED = "https://b.example/k?sig=made-up-signature"


def answered(status: int, code: str = "") -> str:
    body = f"<Error><Code>{code}</Code></Error>" if code else ""
    said = f"Server returned non-2xx status code: {status} : {body}"
    return f"Generic S3 error: Error performing GET {SIGNED} in 1ms - {said}"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GenericError(answered(403)), SourceRefusedError),
        (GenericError(answered(401)), SourceRefusedError),
        (GenericError(answered(400, "ExpiredToken")), SourceRefusedError),
        (PermissionDeniedError("denied"), SourceRefusedError),
        (UnauthenticatedError("who"), SourceRefusedError),
        (GenericError(f"Generic GCS error: Error performing token request: GET {SIGNED}"), SourceRefusedError),
        (GenericError(answered(404, "NoSuchBucket")), ArtifactNotFoundError),
        (FileNotFoundError(answered(404, "NoSuchKey")), ArtifactNotFoundError),
        (PreconditionError(answered(412)), ArtifactChangedError),
        (GenericError(answered(301, "PermanentRedirect")), ConfigError),
        (GenericError("Generic S3 error: Received redirect without LOCATION, wrong region"), ConfigError),
        (GenericError(answered(503, "SlowDown")), SourceUnavailableError),
        (
            GenericError(f"Generic S3 error: Error performing GET {SIGNED} - HTTP error: timeout"),
            SourceUnavailableError,
        ),
        (GenericError(answered(400, "Odd")), ArtifactError),
        (ValueError("Could not parse path"), ArtifactError),
    ],
)
def test_an_error_of_the_library_becomes_one_of_the_tree(error: Exception, expected: type[TrimsError]) -> None:
    assert isinstance(error, BaseError | OSError | ValueError)
    with pytest.raises(expected) as caught, tree_errors("s3://b/k", "b", "the places", "us-east-1"):
        raise error
    assert type(caught.value) is expected
    assert caught.value.__suppress_context__
    assert "made-up-signature" not in str(caught.value)
    assert ("the places" in str(caught.value)) == (expected is SourceRefusedError)


def test_errors_of_the_tree_pass_and_refusals_say_once_where_credentials_come_from() -> None:
    with pytest.raises(InUseError), tree_errors("s3://b/k", "b", "the places"):
        raise InUseError("x")
    for text in ("refused", "refused; looked for in the places"):
        with pytest.raises(SourceRefusedError) as caught, tree_errors("s3://b/k", "b", "the places"):
            raise SourceRefusedError(text)
        assert str(caught.value).count("the places") == 1
        assert str(caught.value).startswith("s3://b/k")


def test_a_setting_that_the_library_refuses_is_shown_without_its_value() -> None:
    with pytest.raises(ConfigError, match="the places") as caught, setting_errors("b", "the places"):
        raise GenericError('Generic GCS error: Unable to decode: invalid type: string "made-up-secret"')
    assert "Unable to decode" in str(caught.value)
    assert "made-up-secret" not in str(caught.value)
