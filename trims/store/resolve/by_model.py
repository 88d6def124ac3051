"""A mapping of references, which finds those of one model without a look at all others."""

from __future__ import annotations

from typing import TypeVar

from trims.manifests.references import name_of

_Value = TypeVar("_Value")


class ByModel(dict[str, _Value]):
    """Names, or names with versions or labels -> what is known of each. Not safe to change from several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._references: dict[str, dict[str, None]] = {}

    def __setitem__(self, reference: str, value: _Value) -> None:
        if reference not in self:
            self._references.setdefault(name_of(reference), {})[reference] = None
        super().__setitem__(reference, value)

    def __delitem__(self, reference: str) -> None:
        super().__delitem__(reference)
        model = name_of(reference)
        del self._references[model][reference]
        if not self._references[model]:
            del self._references[model]

    def drop_oldest(self) -> None:
        """Remove the reference that was added first. Raises StopIteration if there is none."""
        del self[next(iter(self))]

    def drop_model(self, model: str) -> None:
        """Remove all references of a model, if there are any."""
        for reference in list(self._references.get(model, ())):
            del self[reference]
