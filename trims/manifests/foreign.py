"""Manifests from elsewhere: what comes with a fetched model may name nothing of this machine, and no code.

A model's publisher says what its tensors are and how they are prepared. Where files lie on this machine, which hosts
are asked, and which functions run is the operator's to say: in a manifest that is registered here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import AddressRefusedError, ManifestError
from trims.manifests.addresses import LOCAL, beside, check_address, host_of, scheme_of
from trims.manifests.fields import CALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Fields of a manifest that may come from elsewhere; all others are this machine's.
FIELDS = (
    "version", "description", "license", "framework", "attributes", "predictor", "inputs", "preprocess", "postprocess",
    "outputs",
)  # fmt: skip
#: Fields that are for people: what they say is not followed.
_PROSE = ("description", "license", "attributes")
#: Letters that one text may have.
_MOST_LETTERS = 10_000
#: Fields that name a file beside the manifest; among the outputs of a step, `labels` names a tensor.
_FILE_FIELDS = re.compile(r"((?<!\boutputs)\.labels|\.tokenizer)\Z")


def foreign_fields(raw: Mapping[str, Any], where: str, origin: str = "") -> dict[str, Any]:
    """Return the fields of a manifest from elsewhere that count here.

    Args:
        origin: Folder that relative paths begin at here: a field that names a file there leads to this machine's files.

    Raises AddressRefusedError naming the field that leads to this machine's files, to a host, or to code, and
    ManifestError for one with a text that is too long.
    """
    taken = {name: raw[name] for name in FIELDS if name in raw}
    for name, value in taken.items():
        for path, text in _texts(value, name):
            if max(len(path), len(text)) > _MOST_LETTERS:
                raise ManifestError(
                    f"the manifest at {where} has a text of more than {_MOST_LETTERS} letters: {path:.100}"
                )
            wrong = "" if name in _PROSE else _leads_to(path, text, origin)
            if wrong:
                raise AddressRefusedError(
                    f"the manifest at {where} names {wrong} ({path}: {text!r:.100}), which one from elsewhere may not; "
                    "if that is meant, write a manifest of your own with the address, and register it"
                )
    return taken


def portable_fields(raw: Mapping[str, Any], origin: str) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a manifest of this machine that may go elsewhere, and the names of those that may not.

    Args:
        origin: Folder that its relative paths begin at: a field that names a file there stays here, as its file does.
    """
    taken, left = {}, []
    for name in (each for each in FIELDS if each in raw):
        texts = _texts(raw[name], name) if name not in _PROSE else ()
        if any(_leads_to(path, text, origin) for path, text in texts):
            left.append(name)
        else:
            taken[name] = raw[name]
    if "preprocess" in left and "inputs" in taken:  # which are those of a request, and not of the model
        left.append("inputs")
        del taken["inputs"]
    return taken, left


def portable_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a recipe says on any machine: nothing of code that lay here, and no option that names code or files.

    Nothing is proven by the recipe of a pushed image: its key is made of its address and digest.
    """
    taken = {name: value for name, value in recipe.items() if name not in ("builder", "options")}
    options = recipe.get("options", {})
    if isinstance(options, dict):
        taken["options"] = {name: value for name, value in options.items() if not _is_own(value)}
    return {name: value for name, value in taken.items() if name == "options" or not _is_own(value)}


def _is_own(value: Any) -> bool:
    return any(_wrong(text) for _, text in _texts(value, ""))


def left_out(raw: Mapping[str, Any]) -> list[str]:
    """Return the fields of a pushed image's manifest that are not taken."""
    return sorted(name for name in raw if name not in FIELDS)


#: Fields of an artifact that a manifest from elsewhere may have, beside where it lies.
_ARTIFACT = ("format", "sha256", "trust", "options")


def foreign_manifest(raw: object, address: str) -> dict[str, Any]:
    """Return a manifest that lies at an address, as it is registered here.

    Args:
        address: Where: paths in it are those of files beside it.

    Raises ManifestError for what is none, AddressRefusedError for what one from elsewhere may not name.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("artifact"), dict):
        raise ManifestError(f"{address} is no manifest: it is no mapping with an `artifact`")
    artifact = raw["artifact"]
    beyond = sorted({*raw} - {*FIELDS, "name", "artifact", "residency"}, key=str)
    if beyond:
        raise ManifestError(f"{address}: unknown field {beyond[0]!r:.80}")
    refused = sorted({*artifact} - {*_ARTIFACT, "path", "uri"}, key=str)
    if refused:
        raise AddressRefusedError(
            f"the manifest at {address} has artifact.{refused[0]}, which one from elsewhere may not: it names code, or "
            "files of this machine; write a manifest of your own, and register it"
        )
    kept = {name: artifact[name] for name in _ARTIFACT if name in artifact}
    for path, text in _texts(kept, "artifact"):
        if _wrong(text):
            raise AddressRefusedError(f"the manifest at {address} names {_wrong(text)} ({path}: {text!r:.100})")
    options = kept.get("options")
    if isinstance(options, dict) and options.get("allow_pickle"):
        raise AddressRefusedError(
            f"the manifest at {address} has options.allow_pickle, which one from elsewhere may not: it lets code of "
            "the artifact run; write a manifest of your own, and register it"
        )
    others = {name: raw[name] for name in ("name", "residency") if name in raw}
    return {**others, **foreign_fields(raw, address), "artifact": {**kept, "uri": _uri(artifact, address)}}


def _uri(artifact: Mapping[str, Any], address: str) -> str:
    """Return where the artifact of a manifest at an address lies: beside it, in a store, or at a hub."""
    path, uri = artifact.get("path"), artifact.get("uri")
    if isinstance(path, str) and uri is None:
        if _wrong(path):
            raise AddressRefusedError(f"the manifest at {address} names {_wrong(path)} ({path!r:.100})")
        return beside(address, path)
    if not isinstance(uri, str) or path is not None:
        raise ManifestError(f"{address}: artifact needs exactly one of path and uri")
    if scheme_of(uri) in LOCAL:
        raise AddressRefusedError(f"the manifest at {address} names what lies on this machine ({uri!r:.100})")
    check_address(uri)
    if host_of(uri) not in ("", host_of(address)):
        raise AddressRefusedError(
            f"the manifest at {address} names another host ({host_of(uri)}); if that is meant, write a manifest of "
            "your own with the address, and register it"
        )
    return uri


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _texts(each, f"{path}.{name}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _texts(each, f"{path}[{index}]")


def _leads_to(path: str, text: str, origin: str) -> str:
    """Return what a text of a field leads to beside the model itself; empty for nothing."""
    if path == "predictor.handler":
        return "code"
    if text and not _wrong(text) and _FILE_FIELDS.search(path):
        return "a file beside it, which does not come with the model"
    return _wrong(text) or ("a file of this machine" if _is_file(origin, text) else "")


def _is_file(origin: str, text: str) -> bool:
    try:
        return bool(origin) and Path(origin, text).is_file()
    except (OSError, ValueError):  # too long for a name, or not to be looked at
        return False


def _wrong(text: str) -> str:
    if text.startswith(("/", "~")) or ".." in re.split(r"[/\\]", text):
        return "a path outside its folder"
    if scheme_of(text) or "://" in text:
        return "code" if re.match(CALL, text) else "an address"
    return "code" if re.match(CALL, text) else ""
