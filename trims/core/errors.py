"""The one error tree: every class names the culprit and says whether asking again can help.

A branch for each culprit: the caller (`CallerError`), readers (`InUseError`), a lack of room (`CapacityError`), a
deadline that passed (`DeadlineError`), a peer that went away (`LostPeerError`), bytes that are not what they claim
(`BrokenWeightsError`), the code of a predictor (`PredictorError`) and trims itself (`InternalError`). `code` is the
stable name that crosses the doors; `trims.wire.status` maps it to gRPC and back. Not covered: errors of frameworks
inside a converter, which arrive as `ConversionError`.

Where Python has a class for the same thing, it is a second base, so that `except TimeoutError` and the like work. Three
of those are OSErrors, with `errno` None: a handler of OSError round code that may also raise errors of this tree must
let these pass first.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, TypeGuard

    from trims.core.functions import Raised


class TrimsError(Exception):
    """Base of all errors trims raises on purpose. The message names the culprit and the remedy.

    Example:
        try:
            weights = trims.open_file("/models/no-such-file.safetensors")
        except trims.TrimsError as error:
            print("again later" if error.retryable else "never", error)
    """

    code: ClassVar[str] = "trims"
    #: Retry hint: true if the same request may succeed later without any change.
    retryable: ClassVar[bool] = False


class CallerError(TrimsError):
    """The request itself is wrong; sending it again changes nothing."""

    code = "bad_request"


class BadMessageError(CallerError):
    """A message on a door is malformed, oversized or out of order. The session that sent it ends."""

    code = "bad_message"


class ManifestError(CallerError):
    """A manifest has an unknown field, a wrong type or a path that leaves its folder."""

    code = "bad_manifest"


class ConfigError(CallerError):
    """A setting of the daemon is unknown or out of range."""

    code = "bad_config"


class _MissingError(CallerError, KeyError):
    """A KeyError that reads as a sentence: KeyError itself shows the repr of its message."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ModelNotFoundError(_MissingError):
    """No model of this name is registered."""

    code = "model_not_found"


class ModelExistsError(CallerError):
    """The name is taken by a different manifest."""

    code = "model_exists"


class TensorNotFoundError(_MissingError):
    """The image holds no tensor of this name."""

    code = "tensor_not_found"


class NotSupportedError(CallerError):
    """This build, host or device cannot do what was asked; the message says why."""

    code = "not_supported"


class NotOfferedError(NotSupportedError):
    """An extension of the inference protocol that the endpoint does not offer; the message names the extension."""

    code = "not_offered"


class NotInPlaceError(NotSupportedError):
    """The artifact's own files cannot be served as they are: it must be converted. Open it without a place."""

    code = "not_in_place"


class PermissionDeniedError(CallerError, PermissionError):
    """The peer's user may not do this."""

    code = "permission_denied"


class SourceRefusedError(CallerError, PermissionError):
    """A source of artifacts wants other credentials; the message names the source and where it looked for them."""

    code = "source_refused"


class AddressRefusedError(CallerError):
    """An address leads where the daemon's policy does not allow: a private host, or a file of this machine."""

    code = "address_refused"


class ClosedError(CallerError):
    """A closed object was used again."""

    code = "closed"


class InUseError(TrimsError):
    """A lease, a pin or another process holds what was asked for; nothing is taken away from a reader."""

    code = "in_use"
    retryable = True


class CapacityError(TrimsError, MemoryError):
    """A tier has no room and nothing that may be evicted; the message gives the numbers."""

    code = "capacity"
    retryable = True


class NoSpaceError(CapacityError):
    """The machine has less room at a place than the tier's capacity says, and nothing there may be evicted.

    Attributes:
        room_bytes: Bytes that the place could still give when the memory was refused; None if that is unknown.
    """

    code = "no_space"

    def __init__(self, message: str = "", room_bytes: int | None = None) -> None:
        super().__init__(message)
        self.room_bytes = room_bytes


class TooLargeError(CapacityError):
    """The image is larger than the tier's whole capacity: waiting does not help."""

    code = "too_large"
    retryable = False


class QuotaError(CapacityError):
    """A tenant holds as much as it may; another tenant is served. The message names the quota."""

    code = "quota"


class BusyError(CapacityError):
    """More requests wait for a model than its queue holds, or it is just being evicted; send it again later."""

    code = "busy"


class DeadlineError(TrimsError, TimeoutError):
    """The deadline of a waiting open passed, and a load that has begun goes on; or that of a request to a predictor."""

    code = "deadline"
    retryable = True


class LostPeerError(TrimsError, ConnectionError):
    """The other process went away in the middle."""

    code = "lost_peer"
    retryable = True


class DaemonAwayError(LostPeerError):
    """No daemon answers at this address; the message names the address and how to start one."""

    code = "daemon_away"


class SourceUnavailableError(LostPeerError):
    """A source of artifacts does not answer, or broke off in the middle; what was fetched is kept.

    Attributes:
        retry_after_s: Least seconds before the next request, if the source says that it is busy; None otherwise.
    """

    code = "source_unavailable"
    retry_after_s: float | None = None


class DrainingError(LostPeerError):
    """The daemon is draining: it keeps its leases and takes no new opens."""

    code = "draining"


class DeviceLostError(LostPeerError):
    """A GPU, or the context of the process that used it, is gone: its replicas are filled again elsewhere."""

    code = "device_lost"


class BrokenWeightsError(TrimsError):
    """An artifact, image or segment is not what it claims to be."""

    code = "broken_weights"


class ArtifactError(BrokenWeightsError):
    """A published file is unreadable, truncated, lying about its sizes, or not of the format it should be."""

    code = "bad_artifact"


class ArtifactNotFoundError(ArtifactError, FileNotFoundError):
    """A published file is not where its manifest or its opener says."""

    code = "artifact_not_found"


class ArtifactChangedError(ArtifactError):
    """A file of the artifact was replaced or written between two looks at it; ask again once that is done."""

    code = "artifact_changed"
    retryable = True


class DigestMismatchError(BrokenWeightsError):
    """The bytes hash to something else than was recorded or stated."""

    code = "digest_mismatch"


class ImageError(BrokenWeightsError):
    """An image or segment breaks a rule of the image format."""

    code = "bad_image"


class ConversionError(BrokenWeightsError):
    """A converter child refused an artifact, died, or passed its memory or time limit."""

    code = "conversion"


class PredictorError(TrimsError):
    """A predictor's own code raised, its process ended, or it cannot be started; other models are not affected.

    Attributes:
        raised: Class, message and place of what the code raised; None if it raised nothing.
    """

    code = "predictor"

    def __init__(self, message: str = "", *, raised: Raised | None = None) -> None:
        super().__init__(message)
        self.raised = raised


class InternalError(TrimsError):
    """A bug in trims. Please report it with the replica's history from the message."""

    code = "internal"


class CudaError(InternalError):
    """The CUDA driver refused a call that should have worked; the message names call and status."""

    code = "cuda"


class InvalidTransitionError(InternalError):
    """A replica was to make a step that its state does not allow; the message has its history."""

    code = "invalid_transition"


class InvariantError(InternalError):
    """`validate()` found the books wrong; the message names the first broken rule."""

    code = "invariant"


def is_system_error(error: BaseException) -> TypeGuard[OSError]:
    """Return whether the operating system refused something: an OSError, but none of this tree."""
    return isinstance(error, OSError) and not isinstance(error, TrimsError)


def _tree(root: type[TrimsError]) -> dict[str, type[TrimsError]]:
    found = {} if root.__name__.startswith("_") else {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def error_classes() -> dict[str, type[TrimsError]]:
    """Return every error class by its code."""
    return _tree(TrimsError)


def from_code(code: str, message: str) -> TrimsError:
    """Rebuild an error that crossed a door; an unknown code becomes an `InternalError` that says so."""
    cls = error_classes().get(code)
    if cls is None:
        return InternalError(f"{message} (the peer sent the unknown error code {code!r})")
    return cls(message)
