"""The client of trims: sessions and weights. Importing and attaching need the standard library only.

Users say `import trims`; `trims_client.frameworks` turns weights into PyTorch modules, ONNX Runtime sessions and
MXNet blocks; `trims_client.transparent` has frameworks' own load functions read through the store.

Doors: `session`, `weights`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trims_client.session import Session, connect
    from trims_client.shared import open_file
    from trims_client.weights import Weights

__all__ = ["Session", "Weights", "connect", "open_file"]
#: Names -> modules that have them. A program that only installs loaders pays for none of these.
_HOMES = {"Session": "session", "connect": "session", "open_file": "shared", "Weights": "weights"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
