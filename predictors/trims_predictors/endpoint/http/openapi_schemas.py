"""Schemas of the endpoint's OpenAPI document: requests and answers by their names."""

from __future__ import annotations

from typing import Any

from trims.manifests.serving import ITEM_BYTES
from trims_predictors.endpoint.requests.request_limits import MOST_CLASSES, MOST_TENSORS

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
ANY: Json = {"type": "object"}
_PARAMETERS: Json = {
    "type": "object",
    "description": "strings, numbers and booleans",
    "additionalProperties": {"anyOf": [TEXT, {"type": "number"}, {"type": "boolean"}]},
}
BYTES: Json = {"type": "integer", "minimum": 0}
_OF_SHARED: Json = {
    "shared_memory_region": TEXT, "shared_memory_offset": BYTES, "shared_memory_byte_size": BYTES,
}  # fmt: skip


def only(**properties: Json) -> Json:
    """Return the schema of parameters of a request: any other is refused."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


_DATATYPE: Json = {"type": "string", "enum": list(ITEM_BYTES)}
_DATA: Json = {"type": "array", "description": "values in row-major order, nested or flat", "items": {}}


def items_of(items: Json) -> Json:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def fields(*, required: tuple[str, ...] = (), **properties: Json) -> Json:
    """Return the schema of an object with these properties."""
    made: Json = {"type": "object", "properties": properties}
    return {**made, "required": list(required)} if required else made


def reference(name: str) -> Json:
    """Return the schema that has this name."""
    return {"$ref": f"#/components/schemas/{name}"}


_SHAPE = items_of({"type": "integer", "minimum": 0})
_TENSOR_TYPE = fields(
    required=("name", "datatype", "shape"),
    name=TEXT,
    datatype=_DATATYPE,
    shape=items_of({"type": "integer", "minimum": -1, "description": "-1: any length"}),
)
_INPUT = fields(
    required=("name", "datatype", "shape"),
    name={"type": "string", "minLength": 1},
    datatype=_DATATYPE,
    shape=_SHAPE,
    data=_DATA,
    parameters=only(binary_data_size=BYTES, **_OF_SHARED),
)
_OUTPUT: Json = {**_INPUT, "properties": {**_INPUT["properties"], "parameters": _PARAMETERS}}
_WANTED = fields(
    required=("name",),
    name={"type": "string", "minLength": 1},
    parameters=only(
        binary_data={"type": "boolean"},
        classification={"type": "integer", "minimum": 0, "maximum": MOST_CLASSES},
        **_OF_SHARED,
    ),
)
SECONDS: Json = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e9}

#: A value of a request in plain JSON: text, a number, a truth value, or a list of one of these.
_VALUE: Json = {
    "anyOf": [TEXT, {"type": "number"}, {"type": "boolean"}, {"type": "null"}, {"type": "array", "items": TEXT},
              {"type": "array", "items": {"type": "number"}}],
}  # fmt: skip
_TEXTS: Json = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}]}
_NULLABLE_COUNT: Json = {"type": ["integer", "null"], "minimum": 1}
#: Fields that requests for text have in common.
_SAMPLING: Json = {
    "max_tokens": _NULLABLE_COUNT, "temperature": {"type": ["number", "null"], "minimum": 0},
    "top_p": {"type": ["number", "null"]}, "seed": {"type": ["integer", "null"], "minimum": 0},
    "stop": {"anyOf": [*_TEXTS["anyOf"], {"type": "null"}]}, "stream": {"type": ["boolean", "null"]},
    "stream_options": {"anyOf": [fields(include_usage={"type": "boolean"}), {"type": "null"}]},
}  # fmt: skip
_USAGE = fields(prompt_tokens=BYTES, completion_tokens=BYTES, total_tokens=BYTES)

SCHEMAS: Json = {
    "Error": fields(required=("error",), error=TEXT),
    "Server": fields(
        required=("name", "version", "extensions"), name=TEXT, version=TEXT, extensions=items_of(TEXT)
    ),
    "Health": fields(required=("live", "ready"), live={"type": "boolean"}, ready={"type": "boolean"}),
    "Models": fields(required=("models",), models=items_of(TEXT)),
    "Model": fields(
        required=("name", "versions", "platform", "inputs", "outputs"),
        name=TEXT, versions=items_of(TEXT), platform=TEXT, inputs=items_of(_TENSOR_TYPE),
        outputs=items_of(_TENSOR_TYPE),
        properties={"type": "object", "additionalProperties": TEXT},
    ),
    "Functions": fields(required=("functions",), functions=items_of(fields(
        required=("name", "model", "as", "handler"), name=TEXT, model=TEXT, handler=TEXT, description=TEXT,
    ))),
    "Event": {"description": "any JSON"},
    "FunctionAnswer": {"description": "any JSON"},
    "FunctionError": fields(required=("error",), error=TEXT, raised=fields(
        required=("type", "message", "file", "line", "function"), type=TEXT, message=TEXT, file=TEXT, line=BYTES,
        function=TEXT,
    )),
    "ModelReady": fields(required=("name", "ready"), name=TEXT, ready={"type": "boolean"}, reason=TEXT),
    "Configuration": fields(
        required=("name", "platform", "max_batch_size", "input", "output"),
        name=TEXT, platform=TEXT, max_batch_size={"type": "integer"}, input=items_of(ANY), output=items_of(ANY),
    ),
    "Statistics": fields(required=("model_stats",), model_stats=items_of(ANY)),
    "State": fields(
        required=("models", "spares", "device_spares", "templates", "counters", "isolation"),
        models=ANY, spares=ANY, device_spares=items_of(ANY), templates=ANY, counters=ANY, isolation=ANY,
    ),
    "InferRequest": fields(
        required=("inputs",),
        id=TEXT,
        model_name={"type": "string", "description": "the name in the path once more"},
        inputs={**items_of(_INPUT), "maxItems": MOST_TENSORS},
        outputs={**items_of(_WANTED), "maxItems": MOST_TENSORS},
        parameters=only(
            deadline=SECONDS, keep_alive=SECONDS, place=TEXT, priority=BYTES,
            binary_data_output={"type": "boolean"},
            timeout={**BYTES, "description": "microseconds; 0: none"},
            triton_enable_empty_final_response={"type": "boolean"},
        ),
    ),
    "InferAnswer": fields(
        required=("model_name", "outputs"),
        model_name=TEXT, model_version=TEXT, id=TEXT, parameters=_PARAMETERS, outputs=items_of(_OUTPUT),
    ),
    "GenerateRequest": {
        **fields(
            id=TEXT, text_input=TEXT, max_tokens=_NULLABLE_COUNT, stream={"type": "boolean"},
            parameters={"type": ["object", "null"], "additionalProperties": _VALUE},
        ),
        "description": "inputs of the model by name, those of `parameters` as well",
        "additionalProperties": _VALUE,
    },
    "GenerateAnswer": fields(required=("model_name", "model_version"), model_name=TEXT, model_version=TEXT, id=TEXT),
    "OpenAIError": fields(
        required=("error",),
        error=fields(required=("message", "type"), message=TEXT, type=TEXT, param={}, code={}),
    ),
    "OpenAIModel": fields(required=("id", "object"), id=TEXT, object=TEXT, created=BYTES, owned_by=TEXT),
    "OpenAIModels": fields(required=("object", "data"), object=TEXT, data=items_of(ANY)),
    "OpenAIEmbeddingRequest": fields(
        required=("model", "input"), model={"type": "string", "minLength": 1}, input=_TEXTS,
        encoding_format={"type": ["string", "null"], "enum": ["float", "base64", None]},
    ),
    "OpenAIEmbeddings": fields(required=("data", "usage"), object=TEXT, model=TEXT, data=items_of(ANY), usage=_USAGE),
    "OpenAICompletionRequest": fields(
        required=("model", "prompt"), model={"type": "string", "minLength": 1}, prompt=_TEXTS,
        echo={"type": ["boolean", "null"]}, **_SAMPLING,
    ),
    "OpenAIChatRequest": fields(
        required=("model", "messages"), model={"type": "string", "minLength": 1},
        messages={**items_of(fields(required=("role", "content"), role=TEXT, content=TEXT)), "minItems": 1},
        max_completion_tokens=_NULLABLE_COUNT, **_SAMPLING,
    ),
    "OpenAIText": fields(required=("id", "choices"), id=TEXT, object=TEXT, choices=items_of(ANY), usage=_USAGE),
    "Index": items_of(fields(required=("name", "state"), name=TEXT, version=TEXT, state=TEXT, reason=TEXT)),
    "IndexRequest": fields(ready={"type": ["boolean", "null"]}),
    "LoadRequest": fields(parameters={"type": ["object", "null"], "maxProperties": 0}),
    "UnloadRequest": fields(parameters={"type": ["object", "null"]}),
    "Regions": items_of(fields(required=("name", "key", "offset", "byte_size"), name=TEXT, key=TEXT, offset=BYTES,
                             byte_size=BYTES)),
    "RegisterRequest": {
        **fields(required=("key", "byte_size"), key=TEXT, offset=BYTES, byte_size=BYTES),
        "additionalProperties": False,
    },
    "Nothing": {"type": "object", "maxProperties": 0},
    "Overview": fields(
        required=("version", "daemon", "places", "models", "spares", "device_spares", "templates"),
        version=TEXT, daemon=ANY, places=items_of(ANY), models=items_of(ANY), spares=ANY,
        device_spares=items_of(ANY), templates=ANY,
    ),
    "PlaceRequest": fields(place={"type": ["string", "null"], "description": "cpu, disk or gpu:N"}),
    "ModelToAdd": {
        **fields(
            required=("path",),
            path={"type": "string", "pattern": "^/", "description": "the whole path, as the daemon's user can read it"},
            name={"type": "string", "minLength": 1}, task={"type": "string", "minLength": 1},
        ),
        "additionalProperties": False,
    },
    "Added": fields(required=("name", "version", "format", "note"), name=TEXT, version=TEXT, format=TEXT, note=TEXT),
    "Brought": fields(required=("place", "bytes"), place=TEXT, bytes={"type": "integer"}),
    "Evaluations": fields(
        required=("evaluations", "running"), evaluations=items_of(ANY), running={"type": ["object", "null"]},
    ),
    "EvaluationOrder": fields(  # and `from`, below
        model=TEXT, resume=TEXT, request=ANY, how=items_of(TEXT), batch=items_of({"type": "integer"}),
        repeat={"type": "integer", "minimum": 1}, idle={"type": "number", "minimum": 0}, level=TEXT,
        models=items_of(TEXT), scenario={"type": "object", "additionalProperties": {"type": ["string", "number"]}},
    ),
    "Evaluation": fields(required=("id", "model", "state"), id=TEXT, model=TEXT, state=TEXT, done=BYTES, total=BYTES),
    "Removed": fields(id=TEXT, state=TEXT),
    "Explained": fields(required=("before", "after", "changes", "differences"), before=TEXT, after=TEXT,
                        changes=items_of(ANY), differences=items_of(TEXT)),
    "Trace": fields(required=("trace_id", "lines"), trace_id=TEXT, lines=items_of(ANY)),
    "Traces": fields(required=("traces",), traces=items_of(fields(
        required=("trace_id", "name", "began_unix_ns", "seconds", "spans", "processes"), trace_id=TEXT, name=TEXT,
        began_unix_ns={"type": "integer"}, seconds={"type": "number"}, spans=BYTES, processes=BYTES,
    ))),
    "Evicted": fields(required=("freed", "draining"), freed=items_of(TEXT), draining=items_of(TEXT)),
}  # fmt: skip
#: Words of Python cannot be arguments.
SCHEMAS["EvaluationOrder"]["properties"]["from"] = items_of(TEXT)
SCHEMAS["Functions"]["properties"]["functions"]["items"]["properties"]["as"] = TEXT
