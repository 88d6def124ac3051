"""The one error tree: every class names the culprit and says whether asking again can help.

Five branches, one for each culprit: the caller (`CallerError`), a lack of room (`CapacityError`), a peer that went
away (`LostPeerError`), bytes that are not what they claim (`BrokenWeightsError`) and trims itself
(`InternalError`). `code` is the stable name that crosses the doors; `trims.wire.status` maps it to
gRPC and back. Not covered: errors of frameworks inside a converter, which arrive as `ConversionError`.
"""

from __future__ import annotations

from typing import ClassVar


class TrimsError(Exception):
    """Base of all errors trims raises on purpose. The message names the culprit and the remedy."""

    code: ClassVar[str] = "trims"
    #: True when the same request may succeed later without anybody changing anything.
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


class ModelNotFoundError(CallerError):
    """No model of this name is registered."""

    code = "model_not_found"


class ModelExistsError(CallerError):
    """The name is taken by a different manifest."""

    code = "model_exists"


class TensorNotFoundError(CallerError, KeyError):
    """The image holds no tensor of this name."""

    code = "tensor_not_found"

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NotSupportedError(CallerError):
    """This build, host or device cannot do what was asked; the message says why."""

    code = "not_supported"


class PermissionDeniedError(CallerError):
    """The peer's user may not do this."""

    code = "permission_denied"


class ClosedError(CallerError):
    """You closed it, then used it."""

    code = "closed"


class InUseError(CallerError):
    """A lease or a pin holds the replica; it is not evicted under its reader."""

    code = "in_use"
    retryable = True


class CapacityError(TrimsError):
    """A tier has no room and nothing that may be evicted; the message gives the numbers."""

    code = "capacity"
    retryable = True


class TooLargeError(CapacityError):
    """The image is larger than the tier's whole capacity: waiting does not help."""

    code = "too_large"
    retryable = False


class DeadlineError(TrimsError):
    """The deadline of a waiting open passed. The load itself goes on."""

    code = "deadline"
    retryable = True


class LostPeerError(TrimsError):
    """The other process went away in the middle."""

    code = "lost_peer"
    retryable = True


class DaemonAwayError(LostPeerError):
    """No daemon answers at this address; the message names the address and how to start one."""

    code = "daemon_away"


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
    """A published file is missing, truncated, lying about its sizes, or not of the format it should be."""

    code = "bad_artifact"


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


class InternalError(TrimsError):
    """A bug in trims. Please report it with the story in the message."""

    code = "internal"


class CudaError(InternalError):
    """The CUDA driver refused a call that should have worked; the message names call and status."""

    code = "cuda"


class InvalidTransitionError(InternalError):
    """A replica was asked to make a step its state does not allow; the message tells its story."""

    code = "invalid_transition"


class InvariantError(InternalError):
    """`validate()` found the books wrong; the message names the first broken rule."""

    code = "invariant"


def _tree(root: type[TrimsError]) -> dict[str, type[TrimsError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def error_classes() -> dict[str, type[TrimsError]]:
    """Every error class by its code."""
    return _tree(TrimsError)


def from_code(code: str, message: str) -> TrimsError:
    """Rebuild an error that crossed a door; an unknown code becomes an `InternalError` that says so."""
    cls = error_classes().get(code)
    if cls is None:
        return InternalError(f"{message} (the peer sent the unknown error code {code!r})")
    return cls(message)
