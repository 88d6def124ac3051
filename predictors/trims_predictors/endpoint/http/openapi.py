"""The endpoint's own OpenAPI document, `GET /openapi.json`.

Written by hand: the handlers read bodies themselves, so FastAPI would describe neither requests nor answers, and would
promise a status, 422, that is never sent. A test holds it against the routes, another one has requests made from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trims
from trims_predictors.endpoint.generate.openai_errors import FOLDERS, is_openai
from trims_predictors.endpoint.http.openapi_schemas import BYTES, SCHEMAS, SECONDS, TEXT, reference

if TYPE_CHECKING:
    from trims_predictors.endpoint.http.openapi_schemas import Json

#: Traces that are listed if a client does not say how many, and at most.
LISTED_TRACES, MOST_LISTED_TRACES = 50, 500
_UNKNOWN_CALLER = "the token is missing or wrong"
#: Statuses that a request to any path may get, beside its answer.
_ALWAYS = {
    "403": "the request comes from a page of another site, or for a name that is not this machine's",
    "503": "no daemon answers, or there is no room; Retry-After says when to try again",
}
_OF_MODEL = {
    "404": "no such model or version", "500": "the artifact or the manifest is broken", "501": "nothing runs it"
}  # fmt: skip
_OF_RUN = {
    "400": "the request is wrong", "413": "the body is too large", "500": "the predictor failed",
    "504": "no predictor was free in time, or the run took too long",
}  # fmt: skip
_OF_LOAD = {"500": "the artifact is broken, or the model cannot be loaded", "504": "it took too long"}
_OF_BODY = {"400": "the request is wrong", "413": "the body is too large"}


def is_open(path: str) -> bool:
    """Return whether a path needs no token: probes and browsers cannot send one with their first request."""
    return path == "/" or path.startswith(("/v2/health/", "/ui/files/"))


def document(*, token: bool) -> Json:
    """The document.

    Args:
        token: Whether requests must bring one.
    """
    made: Json = {
        "openapi": "3.1.0",
        "info": {"title": "trims inference endpoint", "version": trims.__version__},
        "paths": _with_heads(
            {
                **_server_paths(),
                **_model_paths(),
                **_generate_paths(),
                **_openai_paths(),
                **_function_paths(),
                **_repository_paths(),
                **_shared_memory_paths(),
                **_evaluation_paths(),
                **_page_paths(),
            }
        ),
        "components": {"schemas": SCHEMAS},
    }
    if token:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        for path, methods in made["paths"].items():
            for method, operation in methods.items():
                if is_open(path):
                    operation["security"] = []
                elif method == "head":
                    operation["responses"]["401"] = {"description": _UNKNOWN_CALLER}
                else:
                    form = "OpenAIError" if is_openai(path) else "Error"
                    operation["responses"]["401"] = _answer(_UNKNOWN_CALLER, reference(form))
    return made


def _with_heads(paths: Json) -> Json:
    """The paths, with HEAD wherever there is GET: the same answers without their content."""
    made = {}
    for path, methods in paths.items():
        made[path] = dict(methods)
        if "get" in methods:
            answers = methods["get"]["responses"].items()
            bare = {status: {"description": answer["description"]} for status, answer in answers}
            made[path]["head"] = {**methods["get"], "responses": bare}
    return made


def _answer(text: str, schema: Json, media_type: str = "application/json") -> Json:
    return {"description": text, "content": {media_type: {"schema": schema}}}


def _operation(
    summary: str, answer: str, errors: dict[str, str] | None = None, body: str = "", *, required: bool = False
) -> Json:
    """One operation: its answer and body are names of schemas."""
    responses = {"200": _answer("the answer", reference(answer))}
    for status, text in {**_ALWAYS, **(errors or {})}.items():
        responses[status] = _answer(text, reference("Error"))
    made: Json = {"summary": summary, "responses": responses}
    if body:
        made["requestBody"] = {"required": required, "content": {"application/json": {"schema": reference(body)}}}
    return made


def _server_paths() -> Json:
    live = _operation("Whether the endpoint runs", "Health")
    ready = _operation("Whether the daemon serves", "Health")
    ready["responses"]["503"] = _answer("it does not", reference("Health"))
    metrics = _operation("For Prometheus", "Nothing")
    metrics["responses"]["200"] = _answer("metrics", TEXT, "text/plain")
    return {
        "/v2": {"get": _operation("What the server is", "Server")},
        "/v2/health/live": {"get": live},
        "/v2/health/ready": {"get": ready},
        "/v2/models": {"get": _operation("All models", "Models")},
        "/v2/models/stats": {"get": _operation("What was counted of all models", "Statistics")},
        "/state": {"get": _operation("Predictors, waiting requests, spares, templates", "State")},
        "/metrics": {"get": metrics},
    }


def _model_paths() -> Json:
    infer = _operation("Ask a model", "InferAnswer", {**_OF_MODEL, **_OF_RUN}, "InferRequest", required=True)
    infer["description"] = (
        "JSON, or JSON and then binary tensors with the header Inference-Header-Content-Length; with 0 in that header "
        "the body is the data of the model's one input, and the answer is binary"
    )
    ready = _operation("Whether a model can be asked", "ModelReady", _OF_MODEL)
    ready["responses"]["503"] = _answer(
        "the model could not be loaded, or the endpoint is ending; or no daemon answers",
        {"anyOf": [reference("ModelReady"), reference("Error")]},
    )
    operations = {
        "": ("get", _operation("What a model takes and gives", "Model", _OF_MODEL)),
        "/ready": ("get", ready),
        "/config": ("get", _operation("As Triton's configuration of a model", "Configuration", _OF_MODEL)),
        "/stats": ("get", _operation("What was counted of a model", "Statistics", _OF_MODEL)),
        "/infer": ("post", infer),
    }
    return {
        f"/v2/models/{{model}}{version}{path}": _with_names({method: operation}, version=bool(version))
        for version in ("", "/versions/{version}")
        for path, (method, operation) in operations.items()
    }


def _generate_paths() -> Json:
    """Return the paths of Triton's generate extension."""
    errors = {**_OF_MODEL, **_OF_RUN}
    whole = _operation("Ask a model with plain values", "GenerateAnswer", errors, "GenerateRequest", required=True)
    parts = _operation("Ask for text in parts", "GenerateAnswer", errors, "GenerateRequest", required=True)
    parts["responses"]["200"] = _answer("an event for each part", TEXT, "text/event-stream")
    return {
        f"/v2/models/{{model}}{version}/{ending}": _with_names({"post": operation}, version=bool(version))
        for version in ("", "/versions/{version}")
        for ending, operation in (("generate", whole), ("generate_stream", parts))
    }


def _openai_paths() -> Json:
    """Return the paths of OpenAI's API, whose errors have a form of their own."""
    errors = {**_OF_MODEL, **_OF_RUN}
    events = {"text/event-stream": {"schema": TEXT}}
    found: Json = {}
    for folder in FOLDERS:
        found[f"{folder}/models"] = {"get": _operation("All models", "OpenAIModels")}
        found[f"{folder}/models/{{model}}"] = _with_names({"get": _operation("A model", "OpenAIModel", _OF_MODEL)})
        for path, text, answer, body, streams in (
            ("embeddings", "Vectors of texts", "OpenAIEmbeddings", "OpenAIEmbeddingRequest", False),
            ("completions", "Text that continues texts", "OpenAIText", "OpenAICompletionRequest", True),
            ("chat/completions", "The next message of a conversation", "OpenAIText", "OpenAIChatRequest", True),
        ):
            operation = _operation(text, answer, errors, body, required=True)
            operation["responses"]["200"]["content"].update(events if streams else {})
            found[f"{folder}/{path}"] = {"post": operation}
    for methods in found.values():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if status != "200":
                    response["content"]["application/json"]["schema"] = reference("OpenAIError")
    return found


def _function_paths() -> Json:
    errors = {**_OF_MODEL, **_OF_RUN}
    call = _operation("Call a function with an event", "FunctionAnswer", errors, "Event")
    call["description"] = (
        "The body is the event, any JSON; or a CloudEvent. In binary mode its attributes are headers (ce-id, "
        "ce-source, ce-type, ce-specversion) and its data is the body; in structured mode the body is all of it, of "
        "the type application/cloudevents+json. The answer is JSON; to a CloudEvent, one in binary mode of the type "
        "with `.response` behind it. What the handler raised is in `raised` of the error"
    )
    call["responses"]["204"] = {"description": "the answer to a CloudEvent whose handler returned nothing"}
    call["responses"]["500"] = _answer("the handler failed, or the model is broken", reference("FunctionError"))
    options = [
        {"name": name, "in": "header", "required": False, "schema": schema}
        for name, schema in (
            ("trims-deadline", SECONDS), ("trims-keep-alive", SECONDS), ("trims-priority", BYTES),
            ("trims-place", TEXT),
        )
    ]  # fmt: skip
    call["parameters"] = [_variable("function"), *options]
    return {
        "/functions": {"get": _operation("All functions", "Functions")},
        "/functions/{function}": {"post": call},
    }


def _variable(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _with_names(path: Json, *, version: bool = False) -> Json:
    """The path with its variables, which stand in each of its operations."""
    names = ["model", *(["version"] if version else [])]
    parameters = [_variable(name) for name in names]
    return {method: {**operation, "parameters": parameters} for method, operation in path.items()}


def _repository_paths() -> Json:
    errors = {**_OF_MODEL, **_OF_BODY, "409": "something holds the model that has to go first"}
    text = "Have a model's weights in memory, and a predictor that has loaded it"
    load = _operation(text, "Nothing", {**errors, **_OF_LOAD}, "LoadRequest")
    unload = _operation("Free a model's weights and end its predictors", "Nothing", errors, "UnloadRequest")
    return {
        "/v2/repository/index": {"post": _operation("All models with their state", "Index", _OF_BODY, "IndexRequest")},
        "/v2/repository/models/{model}/load": _with_names({"post": load}),
        "/v2/repository/models/{model}/unload": _with_names({"post": unload}),
    }


def _shared_memory_paths() -> Json:
    """Return the paths of the extension system_shared_memory, which the flag --shared-memory switches on."""
    status = _operation("Regions of the caller", "Regions", _OF_BODY)
    register = _operation("Register a region of shared memory", "Nothing", _OF_BODY, "RegisterRequest", required=True)
    unregister = _operation("Forget a region, or all of the caller", "Nothing", _OF_BODY, "Nothing")
    base, names = "/v2/systemsharedmemory", [_variable("name")]
    cuda = "/v2/cudasharedmemory"
    return {
        f"{cuda}/status": {"get": _operation("None: CUDA shared memory is not offered", "Regions")},
        f"{cuda}/unregister": {"post": unregister},
        f"{cuda}/region/{{name}}/unregister": {"post": {**unregister, "parameters": names}},
        f"{base}/status": {"get": status},
        f"{base}/region/{{name}}/status": {"get": {**status, "parameters": names}},
        f"{base}/region/{{name}}/register": {"post": {**register, "parameters": names}},
        f"{base}/unregister": {"post": unregister},
        f"{base}/region/{{name}}/unregister": {"post": {**unregister, "parameters": names}},
    }


def _evaluation_paths() -> Json:
    errors = {
        **_OF_BODY, "404": "no such model", "409": "the database is in use", "500": "the command failed",
        "504": "it took too long",
    }  # fmt: skip
    begin = _operation("Begin an evaluation, or go on with one", "Evaluation", errors, "EvaluationOrder", required=True)
    begin["responses"]["202"] = begin["responses"].pop("200")
    report = _operation("A report as a page that needs no other file", "Nothing", errors)
    report["responses"]["200"] = _answer("the report", TEXT, "text/html")
    base, one = "/v1/evaluations", {"parameters": [_variable("evaluation")]}
    both = {"parameters": [_variable("evaluation"), _variable("other")]}
    limit: Json = {
        "name": "limit", "in": "query", "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED_TRACES, "default": LISTED_TRACES},
    }  # fmt: skip
    return {
        base: {"get": _operation("All evaluations, and the running one", "Evaluations", errors), "post": begin},
        f"{base}/{{evaluation}}": {
            "get": {**_operation("An evaluation, or its progress", "Evaluation", errors), **one},
            "delete": {**_operation("Cancel an evaluation that runs, remove another one", "Removed", errors), **one},
        },
        f"{base}/{{evaluation}}/report": {"get": {**report, **one}},
        f"{base}/{{evaluation}}/explained/{{other}}": {
            "get": {**_operation("Two evaluations compared", "Explained", errors), **both}
        },
        "/v1/traces": {"get": {**_operation("The traces recorded last", "Traces", errors), "parameters": [limit]}},
        "/v1/traces/{trace}": {
            "get": {**_operation("A recorded trace", "Trace", errors), "parameters": [_variable("trace")]}
        },
    }


def _page_paths() -> Json:
    page, file = _operation("The web page", "Nothing"), _operation("A file of the web page", "Nothing")
    page["responses"]["200"] = _answer("the page", TEXT, "text/html")
    media_types = ("text/html", "text/css", "text/javascript", "image/svg+xml")
    content = {media_type: {"schema": TEXT} for media_type in media_types}
    file["responses"]["200"] = {"description": "the file", "content": content}
    file["responses"]["404"] = _answer("the page has no such file", reference("Error"))
    file["parameters"] = [
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    ]
    paths: Json = {
        "/": {"get": page},
        "/ui/files/{name}": {"get": file},
        "/ui/state": {"get": _operation("What the web page shows", "Overview")},
    }
    errors = {
        **_OF_MODEL,
        **_OF_BODY,
        "409": "something holds the model that has to go first",
        "504": "it took too long",
    }
    for name, text, answer in (
        ("load", "Have a model's weights at a place; its predictors stay", "Brought"),
        ("pin", "Never evict a model from a place", "Nothing"),
        ("unpin", "Allow a place to evict a model again", "Nothing"),
        ("evict", "Free a model's memory at a place; its idle predictors end", "Evicted"),
    ):
        paths[f"/ui/models/{{model}}/{name}"] = _with_names({"post": _operation(text, answer, errors, "PlaceRequest")})
    adding = _operation(
        "Add a folder of a Hugging Face model, or a file of weights", "Added",
        {**errors, "403": "the endpoint has no token, or a tenant asks"}, "ModelToAdd",
    )  # fmt: skip
    adding["responses"]["201"] = adding["responses"].pop("200")
    paths["/ui/models"] = {"post": adding}
    return paths
