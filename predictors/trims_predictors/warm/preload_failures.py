"""Modules that no template of an environment imports, and the models whose manifests ask for them (`preload`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trims_predictors.children.launcher import Environment

_log = logging.getLogger(__name__)


class Preloads:
    """Warns of each module that a manifest asks for in vain, once for each model.

    Attributes:
        banned: Of each environment the modules that its templates do without, and why.
    """

    def __init__(self) -> None:
        self.banned: dict[Environment, dict[str, str]] = {}
        #: Models that ask for a module of an environment, and those of them that were reported.
        self._wanted: dict[tuple[Environment, str], set[str]] = {}
        self._told: dict[tuple[Environment, str], set[str]] = {}

    def want(self, environment: Environment, model: str, modules: Iterable[str]) -> None:
        """A model's manifest asks for modules."""
        for module in modules:
            self._wanted.setdefault((environment, module), set()).add(model)
            self._tell(environment, module)

    def ban(self, environment: Environment, modules: Mapping[str, str]) -> None:
        """Do without modules from now on, and keep why."""
        self.banned.setdefault(environment, {}).update(modules)
        for module in modules:
            self._tell(environment, module)

    def _tell(self, environment: Environment, module: str) -> None:
        why = self.banned.get(environment, {}).get(module)
        if why is None:
            return
        told = self._told.setdefault((environment, module), set())
        for model in sorted(self._wanted.get((environment, module), set()) - told):
            told.add(model)
            _log.warning(
                "`preload` of %r names %s, which the template for %s cannot import: %s. Each of its predictors imports "
                "it alone, if its code does. Install the module in the environment and start the endpoint again; one "
                "beside the manifest cannot be preloaded, because manifests share a template",
                model, module, environment.framework, why,
            )  # fmt: skip
