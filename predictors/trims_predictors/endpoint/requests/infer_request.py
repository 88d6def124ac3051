"""One inference request, whichever protocol it came by: its tensors, and what its parameters ask for.

Parameters are those of the protocol's extensions that the endpoint offers, and its own. Any other is refused by name:
a client whose parameter was ignored without an error would take a wrong answer for a right one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, NotOfferedError
from trims_predictors.deployment.places import parse_places
from trims_predictors.endpoint.requests.request_limits import MOST_CLASSES, check_name_length

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trims_predictors.tensors import Tensor

Parameters = dict[str, Any]

#: Parameters of each part of a request, over both protocols.
_OF_REQUEST = ("deadline", "keep_alive", "place", "timeout", "priority", "triton_enable_empty_final_response")
_OF_SHARED = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")
_OF_OUTPUT = ("classification", *_OF_SHARED)
#: Parameters of each part that say which data is binary. Over gRPC outputs always are: false is refused there.
_BINARY_OF_REQUEST, _BINARY_OF_INPUT, _BINARY_OF_OUTPUT = "binary_data_output", "binary_data_size", "binary_data"
#: Names that the protocol reserves -> the extension that gives them a meaning.
_RESERVED = {
    "sequence_id": "sequence", "sequence_start": "sequence", "sequence_end": "sequence", "headers": "parameters",
}  # fmt: skip
_MOST_MICROSECONDS, _MOST_UINT64 = 10**15, (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SharedRange:
    """A part of a registered region of shared memory.

    Attributes:
        offset: Bytes from the beginning of the region.
    """

    region: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Form in which a requested output is to be sent.

    Attributes:
        binary: Whether its data is binary; None for what holds for the whole answer.
        classes: So many of its largest values, as texts; 0 for the output itself.
        shared: Where to write it, and not into the answer; None for the answer.
    """

    binary: bool | None = None
    classes: int = 0
    shared: SharedRange | None = None


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One request, checked.

    Attributes:
        inputs: Tensors; those in shared memory have no data yet.
        id: Comes back in the answer.
        wanted: Outputs that are asked for; None for all.
        shared: Index of an input -> where its data lies.
        model: The model's name as KServe's client repeats it beside the path; None if the request does not say it.
        places: Places for the model's weights, best first; empty for the manifest's.
        keep_alive_s: Seconds that its predictor stays; None for what the model says.
        queue_deadline_s: Seconds to wait for a predictor; None for what the endpoint says.
        priority: Priority level, 1 for the highest; 0 for the model's default.
    """

    inputs: list[Tensor]
    id: str | None = None
    parameters: Parameters = field(default_factory=dict)
    wanted: dict[str, Wanted] | None = None
    shared: dict[int, SharedRange] = field(default_factory=dict)
    model: object = None
    places: tuple[str, ...] = ()
    keep_alive_s: float | None = None
    queue_deadline_s: float | None = None
    priority: int = 0

    def chosen(self, outputs: Sequence[Tensor]) -> list[tuple[Tensor, Wanted]]:
        """Return the requested outputs of a response, each with its form. Raises CallerError for a missing one."""
        if self.wanted is None:
            return [(each, Wanted()) for each in outputs]
        by_name = {tensor.name: tensor for tensor in outputs}
        for name in self.wanted:
            if name not in by_name:
                raise CallerError(f"the model has no output {name!r}; it has {', '.join(by_name) or 'none'}")
        return [(by_name[name], wanted) for name, wanted in self.wanted.items()]


def make_request(
    inputs: list[Tensor],
    request_id: str | None,
    parameters: Parameters,
    of_inputs: Iterable[Parameters],
    outputs: Iterable[tuple[str, Parameters]],
    *,
    http: bool,
) -> InferRequest:
    """Check the parameters of a request and put it together.

    Args:
        outputs: Names and parameters of the outputs that it asks for.
        http: Whether it came over HTTP, where data may be JSON or binary.

    Raises:
        CallerError: A parameter is unknown, or has a value that is none of its own.
        NotOfferedError: A parameter belongs to an extension that is not offered.
    """
    _check_known(parameters, (*_OF_REQUEST, _BINARY_OF_REQUEST), "the request")
    if not http:
        _check_binary(parameters, _BINARY_OF_REQUEST, "the request")
    _flag(parameters, "triton_enable_empty_final_response", "the request")
    shared = {
        index: found
        for index, (tensor, given) in enumerate(zip(inputs, of_inputs, strict=True))
        if (found := _of_input(tensor.name, given)) is not None
    }
    wanted = _wanted_outputs(outputs, http=http)
    if not parameters:
        return InferRequest(inputs, request_id, parameters, wanted, shared)
    return InferRequest(
        inputs, request_id, parameters, wanted, shared, places=_places(parameters),
        keep_alive_s=_seconds(parameters, "keep_alive"), queue_deadline_s=_queue_deadline_s(parameters),
        priority=_count(parameters, "priority", 1 << 32),
    )  # fmt: skip


def _places(parameters: Parameters) -> tuple[str, ...]:
    value = parameters.get("place")
    if value is None:
        return ()
    if not isinstance(value, str):
        raise CallerError(f"the parameter 'place' is {value!r:.80}; it must be text, such as 'cpu', or 'gpu,cpu'")
    return parse_places(value)


def _queue_deadline_s(parameters: Parameters) -> float | None:
    """Return the seconds to wait for a predictor.

    `timeout` is that of the extension schedule_policy: in microseconds, with 0 for none.
    """
    deadline_s = _seconds(parameters, "deadline")
    timeout_us = _count(parameters, "timeout", _MOST_MICROSECONDS)
    if deadline_s is not None and timeout_us:
        raise CallerError("the request has the parameters 'deadline' and 'timeout', which say the same; send one")
    return timeout_us / 1e6 if timeout_us else deadline_s


def _seconds(parameters: Parameters, name: str) -> float | None:
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise CallerError(f"the parameter {name!r} is {value!r:.80}; it must be seconds, from 0 to less than 1e9")
    return float(value)


def _count(parameters: Parameters, name: str, most: int) -> int:
    value = parameters.get(name)
    return 0 if value is None else _whole(value, name, "the request", most)


def shared_range(parameters: Parameters, where: str) -> SharedRange | None:
    """The range of shared memory that parameters of an input or output name; None for none. Raises CallerError."""
    region = parameters.get("shared_memory_region")
    if region is None:
        for name in _OF_SHARED:
            if name in parameters:
                raise CallerError(f"{where} has the parameter {name!r} without 'shared_memory_region'; name the region")
        return None
    if not isinstance(region, str) or not region:
        raise CallerError(f"the parameter 'shared_memory_region' of {where} is {region!r:.80}; it must be a name")
    if "shared_memory_byte_size" not in parameters:
        raise CallerError(f"{where} lies in shared memory and lacks the parameter 'shared_memory_byte_size'")
    offset = _whole(parameters.get("shared_memory_offset", 0), "shared_memory_offset", where, _MOST_UINT64)
    nbytes = _whole(parameters["shared_memory_byte_size"], "shared_memory_byte_size", where, _MOST_UINT64)
    return SharedRange(region, offset, nbytes)


def _of_input(name: str, parameters: Parameters) -> SharedRange | None:
    where = f"the input {name!r:.80}"
    _check_known(parameters, (*_OF_SHARED, _BINARY_OF_INPUT), where)
    return shared_range(parameters, where)


def _wanted_outputs(named: Iterable[tuple[str, Parameters]], *, http: bool) -> dict[str, Wanted] | None:
    """Requested outputs by name; None for none. Raises CallerError for one that comes twice."""
    found: dict[str, Wanted] = {}
    for name, parameters in named:
        if name in found:
            raise CallerError(f"the request asks for the output {name!r:.80} twice; ask once")
        check_name_length(name, "a requested output")
        where = f"the output {name!r}"
        _check_known(parameters, (*_OF_OUTPUT, _BINARY_OF_OUTPUT), where)
        if not http:
            _check_binary(parameters, _BINARY_OF_OUTPUT, where)
        classes = _whole(parameters.get("classification", 0), "classification", where, MOST_CLASSES)
        shared = shared_range(parameters, where)
        if shared is not None and classes:
            raise CallerError(f"{where} cannot be written to shared memory as a classification; leave one out")
        found[name] = Wanted(_flag(parameters, _BINARY_OF_OUTPUT, where), classes, shared)
    return found or None


def binary_by_default(request: InferRequest, *, otherwise: bool) -> bool:
    """Return whether outputs are binary that do not say it themselves. Raises CallerError."""
    found = _flag(request.parameters, _BINARY_OF_REQUEST, "the request")
    return otherwise if found is None else found


def _check_known(parameters: Parameters, known: Sequence[str], where: str) -> None:
    for name in parameters:
        if name in _RESERVED:
            raise NotOfferedError(
                f"{where} has the parameter {name!r}: the extension {_RESERVED[name]} is not offered; "
                "docs/inference.md lists the extensions"
            )
        if name not in known:
            raise CallerError(
                f"{where} has the parameter {name!r:.80}, which this endpoint does not know; it takes "
                f"{', '.join(known)}"
            )


def _check_binary(parameters: Parameters, name: str, where: str) -> None:
    """Raise CallerError for a request over gRPC that asks for outputs that are not binary."""
    if _flag(parameters, name, where) is False:
        raise CallerError(f"the parameter {name!r} of {where} is false; over gRPC outputs are binary: leave it out")


def _flag(parameters: Mapping[str, Any], name: str, where: str) -> bool | None:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise CallerError(f"the parameter {name!r} of {where} is {value!r:.40}; it must be true or false")
    return value


def _whole(value: object, name: str, where: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise CallerError(f"the parameter {name!r} of {where} is {value!r:.80}; it must be a whole number to {most}")
    return value
