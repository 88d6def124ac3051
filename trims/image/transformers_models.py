"""Making the module of a Hugging Face model from the files in its image and tensors that are there already.

Used by the converter, which keeps the module's skeleton, and by sessions whose image has none. The library's own loader
gives the tensors their names, merges and casts what the architecture wants otherwise than its file has it, ties, and
computes buffers that no file has. Tensors that it only renames stay where they are: nothing is copied.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version

from trims.core.errors import ArtifactError, NotSupportedError
from trims.image.static_embeddings import make_static
from trims.manifests.sentence_modules import is_static, masks_words, read_modules
from trims.manifests.tasks import EMBEDDING, FEATURES, auto_class
from trims.process.packages import install_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trims.image.model_files import Described

_OLDEST = "5.0"
_CONFIG, _GENERATION_CONFIG = "config.json", "generation_config.json"
_SHOWN_NAMES = 20


def library() -> Any:
    """Return the module `transformers`, quiet. Raises NotSupportedError if it is missing or too old."""
    try:
        import transformers
    except ImportError as error:
        import sys

        raise NotSupportedError(
            f"this model needs transformers, which {sys.prefix} lacks ({error}); install it there: "
            f"{install_words('transformers', sys.executable)}"
        ) from error
    if Version(transformers.__version__) < Version(_OLDEST):
        raise NotSupportedError(
            f"transformers {transformers.__version__} is too old: Hugging Face folders need {_OLDEST} or newer"
        )
    return transformers


@contextlib.contextmanager
def folder_of(files: Mapping[str, bytes]) -> Iterator[str]:
    """Write the files into a folder that lasts for the block: libraries read configurations from folders only."""
    with tempfile.TemporaryDirectory(prefix="trims-model-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield folder


def said_of(error: BaseException, folder: str) -> str:
    """Return what the library says, without the path of the folder that `folder_of` made and that is gone by then."""
    return str(error).replace(f"{folder}/", "").replace(folder, "the model's folder")[:2000]


def make_module(
    state: Mapping[str, torch.Tensor], described: Described, what: str, *, with_code: bool = False
) -> tuple[torch.nn.Module, frozenset[str]]:
    """Return the module of a model in eval mode, and the names of tensors of `state` that it does not use.

    Args:
        state: Tensors by their names in the file. Those that need no conversion become the module's own.
        what: Owner of the module, for messages.
        with_code: Python files of the folder may run.

    Raises:
        ArtifactError: Tensors are missing, have other shapes or belong to more layers than the configuration says.
        NotSupportedError: The installed library does not know the architecture, or lacks what it needs.
    """
    if described.task == EMBEDDING and is_static(read_modules(described.files)):
        return make_static(state, what)
    transformers = library()
    with folder_of(described.files) as folder:
        config, kind = _class_of(transformers, folder, described, what, with_code)
        _check_inputs(kind, described.task, what)
        with _explained(what, transformers, folder), _quiet(transformers), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # of what no file has, such as a pooler that the task does not use
            module, found = kind.from_pretrained(
                None, config=config, state_dict=dict(state), output_loading_info=True, dtype="auto"
            )
        _check(module, found, described.task, what)
        _check_layers(module, found["unexpected_keys"], what)
        if _GENERATION_CONFIG in described.files:
            module.generation_config = _generation_config(transformers, folder, what)
    return module.eval(), frozenset(found["unexpected_keys"])


def buffers_of(module: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the buffers of a module of transformers that was built on the meta device, with their values, by name.

    Args:
        module: The module; one of another library has none here.
        state: Tensors by their names in a file or in the module.
    """
    import sys

    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(module, transformers.PreTrainedModel):
        return {}
    with _quiet(transformers):
        made = type(module).from_pretrained(None, config=module.config, state_dict=dict(state))
    return dict(made.named_buffers(remove_duplicate=False))


def _class_of(transformers: Any, folder: str, described: Described, what: str, with_code: bool) -> tuple[Any, Any]:
    """Return the configuration, and the class of the module for the task."""
    raw = json.loads(described.files[_CONFIG])
    if method := (raw.get("quantization_config") or {}).get("quant_method", ""):
        raise NotSupportedError(
            f"{what}: its weights are quantized ({method}), which is not served from shared memory; take the model's "
            "weights in full or half precision"
        )
    auto = auto_class(described.task, raw, masks_words=masks_words(read_modules(described.files)))
    with _explained(what, transformers, folder):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=with_code, local_files_only=True)
        mapped = getattr(config, "auto_map", None) or {}
        if with_code and auto in mapped:
            from transformers.dynamic_module_utils import get_class_from_dynamic_module

            return config, get_class_from_dynamic_module(mapped[auto], folder)
        mapping = getattr(transformers, auto)._model_mapping
    if type(config) not in mapping:
        raise NotSupportedError(
            f"{what}: {type(config).__name__} of transformers {transformers.__version__} has no class for the task "
            f"{described.task} ({auto}); state another task"
        )
    kinds = mapping[type(config)]
    if not isinstance(kinds, (list, tuple)):
        return config, kinds
    named = {kind.__name__: kind for kind in kinds}
    return config, next((named[each] for each in raw.get("architectures") or () if each in named), kinds[0])


def _check_inputs(kind: Any, task: str, what: str) -> None:
    """Raise NotSupportedError for a class that reads pictures or sound where the task brings texts alone."""
    stated = getattr(kind, "input_modalities", "text")
    reads = (stated,) if isinstance(stated, str) else tuple(stated)
    if task in (FEATURES, EMBEDDING) and reads != ("text",):
        raise NotSupportedError(
            f"{what}: {kind.__name__} reads {' and '.join(reads)}, and requests of the task {task} bring texts alone; "
            "state another task (--task, in a manifest options.task), or add the file of weights itself, whose tensors "
            "a predictor of your own may open"
        )


def _check(module: torch.nn.Module, found: Mapping[str, Any], task: str, what: str) -> None:
    """Raise ArtifactError unless every tensor that the task uses came from the file."""
    missing = sorted(name for name in found["missing_keys"] if not _is_unused(name, task))
    if missing:
        more = f" and {len(missing) - _SHOWN_NAMES} more" if len(missing) > _SHOWN_NAMES else ""
        raise ArtifactError(
            f"{what} lacks {', '.join(missing[:_SHOWN_NAMES])}{more}, which {type(module).__name__} needs for the task "
            f"{task}: state the task that the weights were trained for, such as {FEATURES}"
        )


def _check_layers(module: torch.nn.Module, unused: Iterable[str], what: str) -> None:
    """Raise ArtifactError for tensors of layers behind the last that the configuration states.

    A model without its last layers answers, and wrongly. Other tensors may be unused: a head of another task is.
    """
    layers = _numbers_of_layers(module)
    left = sorted(name for name in unused if _is_behind(name, layers))
    if left:
        more = f" and {len(left) - _SHOWN_NAMES} more" if len(left) > _SHOWN_NAMES else ""
        raise ArtifactError(
            f"{what} does not fit its config.json, which states fewer layers than the weights have: left over are "
            f"{', '.join(left[:_SHOWN_NAMES])}{more}"
        )


def _numbers_of_layers(module: torch.nn.Module) -> dict[str, int]:
    """Return how many layers each list of a module has, by its names in files: with and without the base's prefix."""
    base = f"{getattr(module, 'base_model_prefix', '')}.".lstrip(".")
    found: dict[str, int] = {}
    for name, part in module.named_modules():
        if name and isinstance(part, (torch.nn.ModuleList, torch.nn.Sequential)):
            for each in (name, name.removeprefix(base), base + name):
                found[each] = max(len(part), found.get(each, 0))
    return found


def _is_behind(name: str, layers: Mapping[str, int]) -> bool:
    """Return whether a tensor belongs to a layer behind the last of its list."""
    parts = name.split(".")
    return any(
        part.isdecimal() and int(part[:9]) >= layers.get(".".join(parts[:at]), 1 << 30)
        for at, part in enumerate(parts[:-1])
    )


def _generation_config(transformers: Any, folder: str, what: str) -> Any:
    """Return the configuration of generation. Raises ArtifactError: the library's words name a temporary folder."""
    try:
        return transformers.GenerationConfig.from_pretrained(folder)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        said = said_of(error, folder)
        raise ArtifactError(f"{what}: its {_GENERATION_CONFIG} cannot be used: {said}") from error


def _is_unused(name: str, task: str) -> bool:
    """Return whether a task does without a tensor: features are taken before the pooler."""
    return task in (FEATURES, EMBEDDING) and "pooler" in name.split(".")


@contextlib.contextmanager
def _explained(what: str, transformers: Any, folder: str) -> Iterator[None]:
    """Turn what the library raises over files and configurations into errors that name the model."""
    try:
        yield
    except (MemoryError, ArtifactError, NotSupportedError):
        raise
    except ImportError as error:
        raise NotSupportedError(f"{what}: {said_of(error, folder)}") from error
    except (ValueError, KeyError) as error:
        if "auto_map" in str(error) or "trust_remote_code" in str(error):
            raise NotSupportedError(
                f"{what} needs Python code of its own; if you trust its author, add it with "
                "--trust-remote-code (in a manifest options.trust_remote_code: true)"
            ) from error
        said = said_of(error, folder)
        raise NotSupportedError(f"{what}: transformers {transformers.__version__}: {said}") from error
    except (RuntimeError, OSError, TypeError, AttributeError, IndexError, AssertionError, ZeroDivisionError) as error:
        said = f"{type(error).__name__}: {said_of(error, folder)}"
        raise ArtifactError(f"{what} does not fit its config.json: {said}") from error


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep progress bars and reports of the library off the output: what matters of them is checked here."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
