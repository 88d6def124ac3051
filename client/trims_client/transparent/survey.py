"""Adapters of an environment, and what they would do there: for `trims doctor --loaders`. Imports no framework."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trims_client.transparent import adapters
from trims_client.transparent.entry_points import entry_points

#: Packages that bring a module of another name.
_PACKAGES = {"onnxruntime": ("onnxruntime", "onnxruntime-gpu"), "mxnet": ("mxnet", "mxnet-cu112")}


def survey() -> list[dict[str, Any]]:
    """Return what there is, a dictionary each.

    `loader` is the function, `framework` its module, `version` empty if that is not installed, `proven` the releases
    that the adapter was proven with (none: any), and `problem` why an adapter of another package cannot be imported.
    """
    return [*map(_ours, adapters.FRAMEWORKS), *(_theirs(*each) for each in entry_points(adapters.GROUP).items())]


def _ours(name: str) -> dict[str, Any]:
    adapter = import_module(f"{__package__}.{name.partition('.')[0]}")
    proven = getattr(adapter, "_PROVEN", ())
    return {"loader": adapter._LOADER, **_framework(name), "proven": list(proven), "problem": ""}


def _theirs(name: str, value: str) -> dict[str, Any]:
    home, _, function = value.partition(":")
    problem = ""
    try:
        getattr(import_module(home), function)
    except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
        problem = f"{type(error).__name__}: {error}"
    return {"loader": value, **_framework(name), "proven": [], "problem": problem}


def _framework(name: str) -> dict[str, str]:
    top = name.partition(".")[0]
    for package in _PACKAGES.get(top, (top,)):
        try:
            return {"framework": top, "version": importlib.metadata.version(package)}
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"framework": top, "version": "of an unknown release" if find_spec(top) else ""}


def main() -> None:
    """Print the survey as JSON, and the version of this Python."""
    found = {"python": ".".join(map(str, sys.version_info[:3])), "adapters": survey()}
    sys.stdout.write(f"{json.dumps(found)}\n")
