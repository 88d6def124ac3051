"""Every error that trims raises on purpose, as a tree: catch a branch, or one class.

    TrimsError                  the base of all
    +- CallerError              the request is wrong; sending it again changes nothing
    |  +- ModelNotFoundError, TensorNotFoundError        also KeyError
    |  +- PermissionDeniedError, SourceRefusedError      also PermissionError
    +- InUseError               a lease or a pin holds it; try again later
    +- CapacityError            no room; try again later, except TooLargeError. Also MemoryError
    |  +- NoSpaceError                                   the machine has less than a tier's capacity
    |  +- QuotaError                                     a tenant holds as much as it may
    +- DeadlineError            the deadline passed; a load goes on. Also TimeoutError
    +- LostPeerError            daemon, keeper or device went away; try again. Also ConnectionError
    +- BrokenWeightsError       an artifact, image or segment is not what it claims to be
    |  +- ArtifactNotFoundError                          also FileNotFoundError
    +- PredictorError           a predictor's own code failed, or its process ended
    +- InternalError            a bug in trims

`error.retryable` is True if the same request may succeed later without any change; `error.code` is the stable name
that crosses the doors.

Example:
    try:
        with trims.connect() as session:
            session.open("no-such-model")
    except trims.errors.ModelNotFoundError as error:
        print(error.code, error.retryable, error)
"""

from trims.core.errors import (
    AddressRefusedError,
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    BadMessageError,
    BrokenWeightsError,
    BusyError,
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
    NoSpaceError,
    NotInPlaceError,
    NotOfferedError,
    NotSupportedError,
    PermissionDeniedError,
    PredictorError,
    QuotaError,
    SourceRefusedError,
    SourceUnavailableError,
    TensorNotFoundError,
    TooLargeError,
    TrimsError,
)

__all__ = [
    "AddressRefusedError",
    "ArtifactChangedError",
    "ArtifactError",
    "ArtifactNotFoundError",
    "BadMessageError",
    "BrokenWeightsError",
    "BusyError",
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
    "NoSpaceError",
    "NotInPlaceError",
    "NotOfferedError",
    "NotSupportedError",
    "PermissionDeniedError",
    "PredictorError",
    "QuotaError",
    "SourceRefusedError",
    "SourceUnavailableError",
    "TensorNotFoundError",
    "TooLargeError",
    "TrimsError",
]
