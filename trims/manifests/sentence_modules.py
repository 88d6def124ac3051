"""Modules of sentence-transformers that a folder lists in `modules.json`, and the activation of its CrossEncoders.

Modules run one behind the other: a first one reads texts, a pooling makes one vector of the tokens' vectors, and layers
change that. A list with another module is refused as its folder is added. Standard library only.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import ArtifactError, ArtifactNotFoundError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
#: Setting for how many numbers of a sparse vector are not 0.
MOST_ACTIVE = "max_active_dims"
#: Settings of the transformer: older folders name the model's type.
_SETTINGS = re.compile(r"sentence_[a-z-]+_config\.json\Z")
_LIBRARY = "sentence_transformers."
#: Modules that read texts.
STATIC = "StaticEmbedding"
_TRANSFORMERS = ("Transformer", "MLMTransformer")
FILL_MASK = "fill-mask"
#: Modules that make one vector of the tokens' vectors, and such as change it.
POOLINGS = ("Pooling", "SpladePooling")
_LAYERS = ("Dense", "LayerNorm", "Normalize", "Dropout")
#: Weights of a layer in its folder, best first.
MODULE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
#: Vectors of tokens, and of texts, as modules name them.
_TOKENS, _VECTOR = "token_embeddings", "sentence_embedding"
POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
#: Other names of poolings: fields that switch them on in older folders, and the manifest's.
POOLING_NAMES = {
    "cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean", "weightedmean_tokens": "weightedmean",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
}  # fmt: skip
_SWITCHES = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
#: Activations of torch.nn that work on each number alone, without arguments.
_ACTIVATION = re.compile(r"torch\.nn\.(modules\.(activation|linear)\.)?(?P<name>\w+)\Z")
ACTIVATIONS = (
    "CELU", "ELU", "GELU", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU", "LogSigmoid", "Mish",
    "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softsign", "Tanh",
)  # fmt: skip
#: Activation of a CrossEncoder -> what transformers' pipeline calls it.
_OF_PIPELINES = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}


class Module(NamedTuple):
    """A module of the list.

    Attributes:
        kind: Class of the module, without the package if it is the library's.
        path: Folder of the module; empty for the model's own.
        config: Configuration; empty for a module without.
    """

    kind: str
    path: str
    config: Mapping[str, Any]


def read_modules(files: Mapping[str, bytes]) -> list[Module]:
    """Return the modules of a folder; none without `modules.json`. Raises ArtifactError.

    Args:
        files: Files of the model by name; those of the first module have no folder.
    """
    if MODULES not in files:
        return []
    found = []
    for number, (kind, path) in enumerate(listed_modules(files[MODULES], MODULES)):
        config = settings_in(files) if not number else _object(files, f"{path}/config.json")
        found.append(Module(kind, path, config))
    return found


def listed_modules(content: bytes, where: str) -> list[tuple[str, str]]:
    """Return kind and folder of each module of a `modules.json`. Raises ArtifactError for other content."""
    try:
        listed = json.loads(content)
        found = [(str(each.get("type", "")), str(each["path"]).strip("/")) for each in listed]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{where} is no list of modules: {error!r:.200}") from error
    return [(kind.rpartition(".")[2] if kind.startswith(_LIBRARY) else kind, path) for kind, path in found]


def is_static(modules: Sequence[Module]) -> bool:
    """Return whether texts are read by a table with a vector for each token, and by no transformer."""
    return bool(modules) and modules[0].kind == STATIC


def masks_words(modules: Sequence[Module]) -> bool:
    """Return whether the transformer has the head of masked words, as SPLADE needs it."""
    if not modules or modules[0].kind not in _TRANSFORMERS:
        return False
    task = modules[0].config.get("transformer_task")
    return bool(task == FILL_MASK or (task is None and modules[0].kind == "MLMTransformer"))


def check_modules(modules: Sequence[Module], where: str) -> None:
    """Raise NotSupportedError for a list of modules that makes no embedding here.

    Args:
        modules: Result of `read_modules`.
        where: The folder, for errors.
    """
    if not modules:
        return
    first = modules[0]
    if first.kind == STATIC:
        has_vector = True
    elif first.kind in _TRANSFORMERS:
        has_vector = False
        _check_transformer(first, where)
    else:
        raise NotSupportedError(
            f"{where}: its modules.json begins with {first.kind}, which reads no texts here; known are "
            f"{', '.join((*_TRANSFORMERS, STATIC))}: export the model to ONNX, or add the file of weights itself, "
            "whose tensors a predictor of your own may open"
        )
    for each in modules[1:]:
        if each.kind in POOLINGS and not has_vector:
            _check_pooling(each, masks_words(modules), where)
            has_vector = True
        elif each.kind in _LAYERS and has_vector:
            _check_layer(each, where)
        else:
            place = "" if each.kind not in (*POOLINGS, *_LAYERS) else " at its place"
            raise _refused(f"has the module {each.kind}{place}", where, (*POOLINGS, *_LAYERS))
    if not has_vector:
        raise _refused("has no pooling", where, POOLINGS)


def check_files(modules: Sequence[Module], names: AbstractSet[str], where: str) -> None:
    """Raise ArtifactNotFoundError for a module that lacks a file of its own, of those of the model by name."""
    wanted = [(each, f"{each.path}/") for each in modules if each.kind in ("Dense", "LayerNorm")]
    lacking = [each.path for each, start in wanted if not any(start + name in names for name in MODULE_WEIGHTS)]
    if lacking:
        raise ArtifactNotFoundError(f"{where}: its module {lacking[0]} has no {' or '.join(MODULE_WEIGHTS)}: fetch it")
    if is_static(modules) and "tokenizer.json" not in names:
        raise ArtifactNotFoundError(f"{where}: it has no tokenizer.json, which its {STATIC} reads texts with: fetch it")


def _refused(what: str, where: str, known: Sequence[str] = ()) -> NotSupportedError:
    served = f"; known are {', '.join(known)}" if known else ""
    return NotSupportedError(
        f"{where}: its modules.json {what}, of which no embedding is made here{served}. The vectors of its tokens are "
        "had by --task feature-extraction (in a manifest options.task)"
    )


def _check_transformer(module: Module, where: str) -> None:
    task, texts = module.config.get("transformer_task"), module.config.get("modality_config") or {"text": {}}
    text = texts.get("text") if isinstance(texts, dict) else None
    if task not in (None, "feature-extraction", FILL_MASK):
        raise _refused(f"has a transformer for {task!r:.80}", where)
    output = module.config.get("module_output_name", _TOKENS)
    if not isinstance(text, dict) or text.get("method", "forward") != "forward" or output != _TOKENS:
        raise _refused(f"has a transformer whose texts become {output!r:.80} ({text!r:.200})", where)


def _check_pooling(module: Module, masks: bool, where: str) -> None:
    if module.kind == "SpladePooling":
        strategy, activation = splade_of(module.config)
        if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu") or not masks:
            head = "" if masks else " behind a transformer without the head of masked words"
            raise _refused(f"has a SpladePooling ({strategy!r:.80}, {activation!r:.80}){head}", where)
        return
    modes = poolings_of(module.config)
    if leaves_out_prompt(module) and "weightedmean" in modes:
        raise _refused("has a Pooling weightedmean that leaves out the prompt (include_prompt)", where)
    unknown = [name for name in modes if name not in POOLING_MODES]
    if unknown:
        raise _refused(f"has the pooling {', '.join(map(str, unknown))}", where, POOLING_MODES)


def _check_layer(module: Module, where: str) -> None:
    reads = module.config.get("module_input_name") or _VECTOR
    writes = module.config.get("module_output_name") or reads
    if (reads, writes) != (_VECTOR, _VECTOR):
        raise _refused(f"has a {module.kind} from {reads!r:.80} to {writes!r:.80}", where)
    if module.kind == "Dense":
        activation_of(module.config, where)


def leaves_out_prompt(module: Module) -> bool:
    """Return whether a pooling has no use for the tokens of the prompt."""
    return module.config.get("include_prompt") is False


def prompt_of(files: Mapping[str, bytes], chosen: str | None = None) -> str:
    """Return the text before each text: that of the chosen name, or the folder's default.

    Raises NotSupportedError for a name that the folder has not, ArtifactError.
    """
    stated = _object(files, PROMPTS)
    prompts, default = stated.get("prompts") or {}, stated.get("default_prompt_name")
    name = chosen or default
    if name and name not in prompts:
        known = ", ".join(prompts) or "none"
        raise NotSupportedError(f"{PROMPTS} of the folder has no prompt {name!r}; it has {known}")
    return str(prompts[name]) if name else ""


def bound_of(modules: Sequence[Module], files: Mapping[str, bytes]) -> tuple[str, int | None]:
    """Return name and value of the setting that bounds an embedding, which is None if it has all its numbers.

    `truncate_dim` cuts it off behind so many numbers. Of SPLADE's, `max_active_dims` leaves so many of the largest, and
    zeros in place of the others. Raises ArtifactError.
    """
    name = MOST_ACTIVE if any(each.kind == "SpladePooling" for each in modules) else "truncate_dim"
    most = _object(files, PROMPTS).get(name)
    if most is not None and (type(most) is not int or most < 1):
        raise ArtifactError(f"{PROMPTS}: {name} is {most!r:.80}; write a whole number from 1 up, or leave it out")
    return name, most


def splade_of(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return strategy and activation of a SpladePooling."""
    return config.get("pooling_strategy", "max"), config.get("activation_function", "relu")


def poolings_of(config: Mapping[str, Any]) -> list[Any]:
    """Return the names of a Pooling's ways, whose vectors are joined."""
    mode = config.get("pooling_mode")
    if mode is None:
        return [POOLING_NAMES.get(name, name) for name in _SWITCHES if config.get(f"pooling_mode_{name}")] or ["mean"]
    return [POOLING_NAMES.get(str(each), each) for each in ([mode] if isinstance(mode, str) else mode)]


def activation_of(config: Mapping[str, Any], where: str) -> str:
    """Return the class of torch.nn that is a Dense module's activation. Raises NotSupportedError."""
    named = str(config.get("activation_function") or "torch.nn.modules.activation.Tanh")
    found = _ACTIVATION.match(named)
    if found is None or found["name"] not in ACTIVATIONS:
        raise _refused(f"has a Dense with the activation {named!r:.100}", where, ACTIVATIONS)
    return found["name"]


def settings_in(files: Mapping[str, bytes]) -> Mapping[str, Any]:
    """Return the settings that sentence-transformers keeps of a transformer. Raises ArtifactError."""
    return _object(files, next((name for name in sorted(files) if _SETTINGS.match(name)), ""))


def function_to_apply(config: Mapping[str, Any], files: Mapping[str, bytes], where: str) -> str | None:
    """Return what a CrossEncoder makes scores of its logits with, as pipelines name it; None for another model.

    Args:
        config: `config.json`.
        files: Files of the model by name.
        where: The folder, for errors.

    Raises NotSupportedError for an activation that pipelines do not have, ArtifactError.
    """
    beside, own = _object(files, PROMPTS), config.get("sentence_transformers")
    is_one = beside.get("model_type") == "CrossEncoder"
    named = beside.get("activation_fn") if is_one else None
    if isinstance(own, dict):
        is_one, named = True, named or own.get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function")
    if named is None:
        return (_OF_PIPELINES["Sigmoid"] if _labels(config) == 1 else _OF_PIPELINES["Identity"]) if is_one else None
    found = _ACTIVATION.match(str(named))
    if found is None or found["name"] not in _OF_PIPELINES:
        raise NotSupportedError(
            f"{where}: its CrossEncoder makes scores by {named!r:.100} (activation_fn); known are "
            f"{', '.join(f'torch.nn.{name}' for name in _OF_PIPELINES)}: write one of them in its configuration"
        )
    return _OF_PIPELINES[found["name"]]


def _labels(config: Mapping[str, Any]) -> int:
    named, number = config.get("id2label"), config.get("num_labels")
    return len(named) if isinstance(named, dict) else number if isinstance(number, int) else 2


def _object(files: Mapping[str, bytes], name: str) -> Mapping[str, Any]:
    """Return the JSON object in a file; an empty one if there is no such file. Raises ArtifactError."""
    try:
        found = json.loads(files[name]) if name in files else {}
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ArtifactError(f"{name} is a JSON {type(found).__name__}; a configuration is an object")
    return found
