"""Sharded checkpoints: the index that names the files of one model, and the refusal of a shard by itself.

Hugging Face's libraries write them: `model-00001-of-00002.safetensors` beside `model.safetensors.index.json`, the same
with `.bin`, and both with a variant in the name (`model.safetensors.index.fp16.json`). Standard library only.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError
from trims.core.units import format_bytes
from trims.formats.base import check_relative
from trims.formats.conversion.file_names import names_apart
from trims.image.peek import PARSE_HERE_BYTES
from trims.image.source import SourceFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

#: Formats whose checkpoints may have an index, by the suffix that the index names.
INDEXED = (".safetensors", ".bin")
_INDEX = re.compile(r"(?P<suffix>\.[a-z]+)\.index(\.[^./]+)?\.json\Z")
_SHARD = re.compile(r"(?P<head>.*-)(?P<number>[0-9]+)-of-(?P<count>[0-9]+)(?P<tail>\..+)\Z", re.DOTALL)
#: Parts of a model that was split for as many devices, each with a piece of every tensor.
_PART = re.compile(r"consolidated\.[0-9]+(?P<suffix>\.[a-z]+)\Z")
_MAX_INDEX_BYTES = 64 << 20
#: Shards of one artifact, and the length of their names together: the largest published models have some 200.
_MAX_SHARDS, _MAX_NAMES = 4096, 128 << 10
_SHOWN_NAMES = 5


def is_index(main: Path, suffix: str) -> bool:
    """Return whether a file's name is that of an index of shards with this suffix."""
    found = _INDEX.search(main.name)
    return found is not None and found["suffix"] == suffix


def is_shard(name: str) -> bool:
    """Return whether a file's name says that it is one of several shards."""
    found = _SHARD.match(name)
    return found is not None and found["count"].strip("0") not in ("", "1")


def shard_files(converter: type, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the index and its shards. A large index is parsed in a child, by the converter's `names_here`.

    Raises ArtifactError for an index that is none, and for a shard that is missing.
    """
    large = SourceFile.look(main).nbytes > PARSE_HERE_BYTES
    shards = names_apart(converter, main, options) if large else names_of(main)
    files = (main, *(main.parent / shard for shard in shards))
    for path in files:
        SourceFile.look(path)
    return files


def names_of(main: Path) -> tuple[str, ...]:
    """Return the names of the shards of an index, parsed in this process whatever its size."""
    shards = sorted(set(weight_map(main).values()))
    if len(shards) > _MAX_SHARDS or sum(map(len, shards)) > _MAX_NAMES:
        raise ArtifactError(f"{main}: it names {len(shards)} files; more than {_MAX_SHARDS} shards are refused")
    return tuple(shards)


def weight_map(main: Path) -> Mapping[str, str]:
    """Return an index's map from tensors to shards, with safe file names. Raises ArtifactError."""
    file = SourceFile.look(main)
    if file.nbytes > _MAX_INDEX_BYTES:
        raise ArtifactError(f"{main}: {format_bytes(file.nbytes)} are too many for an index of shards")
    try:
        found = json.loads(file.read(_MAX_INDEX_BYTES))["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{main}: not an index of shards: {error}") from error
    if not isinstance(found, dict) or not found or not all(isinstance(shard, str) for shard in found.values()):
        raise ArtifactError(f"{main}: weight_map is not a map from tensor names to file names")
    for shard in set(found.values()):
        check_relative(main, shard)
    return found


def check_shards(main: Path, expected: Mapping[str, str], found: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Raise ArtifactError unless the shards hold each tensor of the index, and no tensor twice.

    Args:
        main: The index.
        expected: Map of the index from tensors to shards.
        found: Each shard with the names of its tensors.
    """
    places: dict[str, str] = {}
    for shard, names in found:
        for name in names:
            if places.setdefault(name, shard) != shard:
                raise ArtifactError(f"{main}: tensor {name!r} is in {places[name]} and again in {shard}")
    for name, shard in expected.items():
        if places.get(name) != shard:
            raise ArtifactError(f"{main}: tensor {name!r} should be in {shard} and is not")


def refuse_shard(main: Path) -> None:
    """Raise ArtifactError for a file that is one of several of its model: it holds a part of the weights."""
    if _PART.match(main.name):
        _refuse_part(main)
    shard = _SHARD.match(main.name)
    if shard is None or not is_shard(main.name):
        return
    indexes = sorted(path.name for path in main.parent.glob("*.index*.json") if _INDEX.search(path.name))
    remedy = f"add the index of all: {main.parent / indexes[0]}" if indexes else _without_index(main, shard)
    raise ArtifactError(f"{main} is one of {int(shard['count'])} shards and holds a part of the weights; {remedy}")


def _without_index(main: Path, shard: re.Match[str]) -> str:
    width, count = len(shard["number"]), min(int(shard["count"]), _MAX_SHARDS)
    names = (f"{shard['head']}{number:0{width}}-of-{shard['count']}{shard['tail']}" for number in range(1, count + 1))
    missing = [name for name in names if not (main.parent / name).is_file()]
    more = f" and {len(missing) - _SHOWN_NAMES} more" if len(missing) > _SHOWN_NAMES else ""
    shards = f" and the shards {', '.join(missing[:_SHOWN_NAMES])}{more}" if missing else ""
    suffix = main.suffix if main.suffix in INDEXED else INDEXED[0]
    return f"fetch their index (*{suffix}.index.json){shards} into {main.parent} and add the index"


def _refuse_part(main: Path) -> None:
    parts = sorted(path.name for path in main.parent.glob(f"consolidated.*{main.suffix}") if _PART.match(path.name))
    if len(parts) > 1:
        raise ArtifactError(
            f"{main} is one of {len(parts)} parts of a model that was split for as many devices, and holds a piece of "
            "each tensor; merge them, or take the model's safetensors"
        )
