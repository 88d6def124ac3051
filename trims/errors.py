"""Every error that trims raises on purpose, as a tree: catch a branch, or one class.

    TrimsError                  the base of all
    +- CallerError              the request is wrong; sending it again changes nothing, except InUseError
    +- CapacityError            no room; try again later, except TooLargeError
    +- DeadlineError            the deadline passed; the load goes on
    +- LostPeerError            daemon, keeper or device went away; try again
    +- BrokenWeightsError       an artifact, image or segment is not what it claims to be
    +- InternalError            a bug in trims

`error.retryable` is True if the same request may succeed later without any change; `error.code` is the stable name
that crosses the doors.
"""

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    BadMessageError,
    BrokenWeightsError,
    CallerError,
    CapacityError,
    ClosedError,
    ConfigError,
    ConversionError,
    CudaError,
    DaemonAwayError,
    DeadlineError,
    DeviceLostError,
    DigestMismatchError,
    DrainingError,
    ImageError,
    InternalError,
    InUseError,
    InvalidTransitionError,
    InvariantError,
    LostPeerError,
    ManifestError,
    ModelExistsError,
    ModelNotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    TensorNotFoundError,
    TooLargeError,
    TrimsError,
)

__all__ = [
    "ArtifactChangedError",
    "ArtifactError",
    "BadMessageError",
    "BrokenWeightsError",
    "CallerError",
    "CapacityError",
    "ClosedError",
    "ConfigError",
    "ConversionError",
    "CudaError",
    "DaemonAwayError",
    "DeadlineError",
    "DeviceLostError",
    "DigestMismatchError",
    "DrainingError",
    "ImageError",
    "InUseError",
    "InternalError",
    "InvalidTransitionError",
    "InvariantError",
    "LostPeerError",
    "ManifestError",
    "ModelExistsError",
    "ModelNotFoundError",
    "NotSupportedError",
    "PermissionDeniedError",
    "TensorNotFoundError",
    "TooLargeError",
    "TrimsError",
]
