"""Checks whether a made environment still works: the reasons why not, each with its remedy.

Its packages are compared with its lock and with each other from here. Only its own interpreter can show whether the
framework and the parts of trims that run there can be imported, so that is started.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from trims.environments.interpreters import plain_environment
from trims.memory.shortage import killed_words
from trims.process.child import exit_words
from trims.process.oneshot import run
from trims.process.python import LOAD_PACKAGES, run_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trims.environments.environment_store import Made

FRAMEWORKS = ("torch", "transformers", "onnxruntime", "mxnet", "numpy")
#: The framework of a cold disk takes long to import.
_ANSWER_S = 300.0
_SCRIPT = (
    LOAD_PACKAGES
    + """
import importlib, json, os, platform
packages, modules = json.loads(sys.argv[1])
sys.stdout.flush()
answer, _ = os.dup(1), os.dup2(2, 1)
def attempt(work):
    try:
        return {"is": work()}
    except BaseException as error:
        return {"error": type(error).__name__ + ": " + str(error)}
told = {"version": platform.python_version()}
told["ours"] = attempt(lambda: load_packages(packages)
                       or [importlib.import_module(each) for each in modules["ours"]] and None)
told["frameworks"] = {each: attempt(lambda each=each: str(getattr(importlib.import_module(each), "__version__", "")))
                      for each in modules["frameworks"]}
os.write(answer, json.dumps(told).encode())
"""
)
_OURS = {
    "trims": ("trims.formats.conversion.child",),
    "trims_client": ("trims_client.session", "trims_client.weights"),
    "trims_predictors": ("trims_predictors.worker.worker", "trims_predictors.frameworks.resolve"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of an environment, and what to do about it."""

    what: str
    remedy: str


def check(made: Made) -> list[Fault]:
    """Return all that is wrong; empty if it works. Starts its interpreter, which imports its frameworks."""
    return _with_remedy(made, _faults(made))


def glance(made: Made) -> list[Fault]:
    """Return the faults that can be seen without starting anything."""
    if not made.python.exists():
        return _with_remedy(made, [f"its interpreter {made.python} is gone"])
    return _with_remedy(made, _against_lock(made))


def _with_remedy(made: Made, faults: Iterable[str]) -> list[Fault]:
    again = f"trims env rm {made.name}, then make it again as it was: trims env create --lock {made.lock_file}"
    if not made.lock_file.is_file():
        again = f"trims env rm {made.name}; trims env create {' '.join(made.requested)}"
    return [Fault(what, again) for what in faults]


def _faults(made: Made) -> Iterator[str]:
    yield from _against_lock(made)
    told = _ask(made)
    if isinstance(told, str):
        yield told
        return
    yield from _conflicts(made, str(told["version"]))
    if "error" in told["ours"]:
        yield f"trims cannot be imported by {made.python}: {told['ours']['error']}"
    for name, found in told["frameworks"].items():
        if "error" in found:
            yield f"{name} cannot be imported: {found['error']}"
        elif found["is"] and _differ(found["is"], made.versions[name]):
            yield f"{name} says that it is {found['is']}; the lock has {made.versions[name]}"


def installed(made: Made) -> dict[str, str]:
    """Return the versions by package, as they lie there now."""
    return {canonicalize_name(each.name): each.version for each in _distributions(made)}


def _distributions(made: Made) -> list[importlib.metadata.Distribution]:
    return [each for each in importlib.metadata.distributions(path=[str(made.site)]) if each.metadata["Name"]]


def _against_lock(made: Made) -> Iterator[str]:
    there = installed(made)
    for name, version in made.versions.items():
        if name not in there:
            yield f"{name} {version} is missing in {made.site}"
        elif there[name] != version and _differ(there[name], version):
            yield f"{name} is {there[name]}, and the lock has {version}: it was changed after it was made"
    for name in sorted(there.keys() - made.versions.keys() - {"pip", "setuptools", "wheel"}):
        yield f"{name} {there[name]} was installed after it was made, and is not in the lock"


def _conflicts(made: Made, python_version: str) -> Iterator[str]:
    """Yield a sentence for each unmet or conflicting requirement, as `pip check` does, without pip."""
    there = installed(made)
    facts = {
        "python_version": ".".join(python_version.split(".")[:2]), "python_full_version": python_version,
        "implementation_version": python_version, "extra": "",
    }  # fmt: skip
    for each in _distributions(made):
        for text in each.requires or ():
            try:
                needed = Requirement(text)
            except InvalidRequirement:
                continue  # the metadata of old packages
            if needed.marker is not None and not needed.marker.evaluate(facts):
                continue
            found = there.get(canonicalize_name(needed.name))
            if found is None or not needed.specifier.contains(found, prereleases=True):
                yield f"{each.name} {each.version} needs {needed}, and there is {found or 'none'}"


def _ask(made: Made) -> Any:
    """Return the interpreter's answer, or a sentence that says why there is none."""
    packages = {name: folder for name in _OURS if (folder := _folder_of(name))}
    modules = {
        "ours": [module for name in packages for module in _OURS[name]],
        "frameworks": [name for name in FRAMEWORKS if name in made.versions],
    }
    command = run_code(_SCRIPT, json.dumps([packages, modules]), python=made.python)
    try:
        done = run(command, seconds=_ANSWER_S, env=_variables())
    except TimeoutError:
        return f"its interpreter {made.python} did not answer within {_ANSWER_S:g} s"
    except OSError as error:
        return f"its interpreter {made.python} cannot be started: {error.strerror}"
    try:
        return json.loads(done.out)
    except ValueError:
        how = exit_words(done.status, killed_words())
        return f"its interpreter {made.python} {how} and gave no answer: {done.last_words(5)}"


def _variables() -> Mapping[str, str]:
    return {**plain_environment(), "ORT_DISABLE_TELEMETRY": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _folder_of(package: str) -> str:
    """Return the folder of a package; empty if it is not installed here."""
    spec = importlib.util.find_spec(package)
    return os.path.dirname(os.path.abspath(spec.origin)) if spec is not None and spec.origin else ""


def _differ(one: str, other: str) -> bool:
    """Return whether two versions differ, apart from a local label such as `+cpu`."""
    try:
        return Version(one).public != Version(other).public
    except InvalidVersion:
        return one != other
