"""Selection of the environment that a model's framework runs in: one answer for converters and for predictors.

1. The interpreter that is configured for the framework (`environments`), if its version satisfies the manifest.
2. The environment of this process, if it does.
3. The environment that `trims env create` made last, of those that do.

Without a version in the manifest every version satisfies. If there is none, that is an error, except where the model
may do without its framework.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from trims.core.errors import ManifestError, NotSupportedError
from trims.formats.conversion.environments import Environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trims.environments.environment_store import EnvironmentStore, Made


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An environment, and its version of the framework. `python` is None for that of this process."""

    python: Path | None
    version: str | None
    told: str


class InterpreterSelection:
    """Picks, and remembers for as long as no environment becomes ready or goes.

    Args:
        configured: Framework -> interpreter.
        env_store: Where made environments are; None for none.
        without: One of them that is not picked.
    """

    def __init__(
        self,
        configured: Mapping[str, Path] | None = None,
        env_store: EnvironmentStore | None = None,
        *,
        without: str = "",
    ) -> None:
        self._configured = dict(configured or {})
        self._environment_store = env_store
        self._without = without
        self._picked: dict[tuple[str, str, bool], tuple[object, Path | None]] = {}

    def pick(self, model: str, framework: str, version: str = "", *, required: bool = True) -> Path | None:
        """Return the interpreter to use; None for that of this process. Reads files; may start a configured one.

        Args:
            model: Named in errors.
            version: What the manifest says, such as `>=2.4,<2.5`; empty for any.
            required: Whether the framework must be there. If not, and no environment has it, that is no error.

        Raises:
            ManifestError: The version is no constraint.
            NotSupportedError: No environment satisfies it.
            ConfigError: A configured interpreter is not there.
        """
        state = self._state()
        python = self._find(model, framework, version, required=required)
        self._picked[framework, version, required] = (state, python)
        return python

    def again(self, model: str, framework: str, version: str = "", *, required: bool = True) -> Path | None:
        """Return the last pick, at little cost, unless an environment became ready or went since; then pick again."""
        state, python = self._picked.get((framework, version, required), (None, None))
        if state is not None and state == self._state():
            return python
        return self.pick(model, framework, version, required=required)

    def has(self, framework: str, version: str = "") -> bool:
        """Return whether an environment has the framework in a version that satisfies."""
        wanted = _constraint(framework, version)
        return any(
            each.version is not None and wanted.contains(each.version, prereleases=True)
            for each in self._candidates(framework)
        )

    def _state(self) -> object:
        return () if self._environment_store is None else self._environment_store.state()

    def _find(self, model: str, framework: str, version: str, *, required: bool) -> Path | None:
        wanted, seen = _constraint(model, version), []
        configured = self._configured.get(framework)
        if configured is not None and not wanted:
            return configured  # whatever is in it
        for candidate in self._candidates(framework):
            if candidate.version is not None and wanted.contains(candidate.version, prereleases=True):
                return candidate.python
            seen.append(candidate)
        if not wanted or (not required and all(each.version is None for each in seen)):
            return configured
        raise NotSupportedError(_complaint(model, framework, version, seen))

    def _candidates(self, framework: str) -> Iterator[_Candidate]:
        """Yield environments in the order of the module's list.

        Each is looked into only if those before do not satisfy.
        """
        configured = self._configured.get(framework)
        if configured is not None:
            version = _version_in(Environment(configured), framework)
            yield _Candidate(configured, version, f"{configured}, which is configured for it, has {version or 'none'}")
        version = _version_in(Environment(), framework)
        yield _Candidate(None, version, f"{Environment().python} has {version or 'none'}")
        for made in self._made():
            if framework in made.versions:
                version = made.versions[framework]
                yield _Candidate(made.python, version, f"{made.name} has {version}")

    def _made(self) -> list[Made]:
        found = [] if self._environment_store is None else self._environment_store.all()
        return [made for made in found if made.python.exists() and made.name != self._without]


def _version_in(environment: Environment, framework: str) -> str | None:
    return environment.versions((framework,)).get(framework)


def _constraint(model: str, version: str) -> SpecifierSet:
    try:
        return SpecifierSet(version)
    except InvalidSpecifier as error:
        raise ManifestError(
            f"{model}: framework.version {version!r} is no version constraint, such as '>=2.4,<2.5'"
        ) from error


def _complaint(model: str, framework: str, version: str, seen: list[_Candidate]) -> str:
    there = ", ".join(each.told for each in seen)
    requirement = shlex.quote(framework + "".join(version.split()))
    return (
        f"{model} needs {framework} {version}, and {there}; make an environment that has it: "
        f"trims env create {requirement}"
    )
