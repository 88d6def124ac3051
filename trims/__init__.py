"""trims: a resident model store.

    import trims

    with trims.connect() as session, session.open("resnet50") as weights:
        weights["conv1.weight"]          # a read-only numpy view, no bytes copied

This is the one upward reference of the house: names below are taken from `trims_client` when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trims_client import Session, Weights, connect, open_file

    from trims.core.errors import TrimsError

__all__ = ["Session", "TrimsError", "Weights", "connect", "open_file"]


def __getattr__(name: str) -> Any:
    if name == "TrimsError":
        from trims.core.errors import TrimsError

        return TrimsError
    if name in __all__:
        import trims_client

        return getattr(trims_client, name)
    raise AttributeError(f"module 'trims' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
