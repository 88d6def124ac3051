"""Settings of a model's predictor, as a manifest states them."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from trims.core.functions import FORMS
from trims.manifests.fields import CALL, about, matching, parse

_MODULE = matching(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z", "the name of a module")
_PLUGIN = r"^[\w.-]{1,128}\Z"
_HANDLER = r"^[^\x00:]{1,4000}\.py:[A-Za-z_]\w*\Z"
_SECONDS = {"ge": 0, "lt": 1e9, "extra": {"hint": "a number of seconds from 0 up"}}
Seconds = Annotated[float, about("", **_SECONDS)]
#: Levels of priority of one model.
_MOST_LEVELS = 64


class PredictorSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How processes answer: by `call`, `name`, `function` or `handler`, or as trims does for the framework."""

    call: Annotated[str, matching(CALL, "package.module:Class", "package.module:Class of the predictor.")] = ""
    options: Annotated[
        Mapping[str, Any], about("What the class gets in context.options, the function as keyword arguments.")
    ] = {}
    preload: Annotated[
        tuple[Annotated[str, _MODULE], ...], about("Modules that templates import before they fork predictors.")
    ] = ()
    instances: Annotated[
        Annotated[int, about("", ge=1, le=1024)] | None,
        about("Predictors that may run at once; absent: one, and further ones while requests wait for long."),
    ] = None
    threads: Annotated[int, about("Of one predictor; 0: as many as processors.", ge=0, le=1024)] = 0
    max_batch_size: Annotated[
        int, about("Rows, along their first dimension, that requests are put together to; 0: never.", ge=0, le=1 << 20)
    ] = 0
    batch_delay_s: Annotated[float, about("How long a request waits for others, with max_batch_size.", **_SECONDS)] = (
        0.0
    )
    keep_alive_s: Annotated[
        Seconds | None, about("Seconds that an idle predictor stays; absent: until its slot is needed.")
    ] = None
    deadline_s: Annotated[Seconds | None, about("Seconds that one run may take before its predictor is ended.")] = None
    variables: Annotated[
        tuple[Annotated[str, matching(r"^[A-Za-z_]\w{0,255}\Z", "the name of an environment variable")], ...],
        about(
            "Names of environment variables that its predictors get from the endpoint: of those that the operator "
            "lists (trims endpoint --model-variables). No values: a secret does not belong into a manifest."
        ),
    ] = ()
    name: Annotated[
        str,
        matching(
            _PLUGIN,
            "the name of an entry point of trims.predictors",
            "Of an installed predictor: an entry point of the group trims.predictors.",
        ),
    ] = ""
    function: Annotated[
        str, matching(CALL, "package.module:function", "package.module:function, called with (weights, inputs).")
    ] = ""
    handler: Annotated[
        str,
        matching(
            _HANDLER,
            "FILE.py:NAME",
            "FILE.py:NAME of a function (model, event), absolute or inside the manifest's folder; `as` among the "
            "options says what it gets the model as: weights, torch, onnxruntime or mxnet.",
        ),
    ] = ""
    hot: Annotated[
        Annotated[int, about("", ge=0, le=64)] | None,
        about("Predictors that have loaded the model ahead of need; absent: by demand."),
    ] = None
    priority_levels: Annotated[
        int, about("Requests may name 1, the first, to this; 0: none.", ge=0, le=_MOST_LEVELS)
    ] = 0
    default_priority_level: Annotated[
        int, about("Of a request that names none; absent: the one in the middle.", ge=0, le=_MOST_LEVELS)
    ] = -1

    def __post_init__(self) -> None:
        stated = [key for key in ("call", "name", "function", "handler") if getattr(self, key)]
        if len(stated) > 1:
            raise ValueError(f"has {' and '.join(stated)}; state one of them")
        if self.handler:
            self._check_handler()
        if self.batch_delay_s and not self.max_batch_size:
            raise ValueError(
                "'batch_delay_s' has requests wait for others, and none are put together; state `max_batch_size`, or "
                "leave it out"
            )
        levels = self.priority_levels
        if self.default_priority_level < 0:
            msgspec.structs.force_setattr(self, "default_priority_level", (levels + 1) // 2)
        least = min(levels, 1)
        if not least <= self.default_priority_level <= levels:
            given = self.default_priority_level
            raise ValueError(f"'default_priority_level' is {given}; write a whole number from {least} to {levels}")

    @property
    def has_own_code(self) -> bool:
        """Whether something else answers than what trims has for the framework."""
        return bool(self.call or self.name or self.function or self.handler)

    def _check_handler(self) -> None:
        """Raise ValueError for what a handler cannot have."""
        if ".." in self.handler.split("/"):
            raise ValueError(f"'handler' is {self.handler!r:.80}, which leaves its folder; write the file's own path")
        form = self.options.get("as", FORMS[0])
        if form not in FORMS:
            raise ValueError(f"'as' of the options is {form!r:.80}; a handler gets its model as {', '.join(FORMS)}")
        if self.max_batch_size:
            raise ValueError("'max_batch_size' is for tensors; a handler takes one event at a time: leave it out")


def parse_predictor(raw: object, name: str) -> PredictorSettings:
    """Check the field `predictor` of a model. Raises ManifestError."""
    return PredictorSettings() if raw is None else parse(PredictorSettings, raw, f"{name}: predictor")
