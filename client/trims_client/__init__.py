"""The client of trims: sessions and weights. Importing and attaching need the standard library only.

Users say `import trims`; `trims_client.frameworks` turns weights into PyTorch modules, ONNX Runtime sessions and
MXNet blocks.

Doors: `session`, `weights`.
"""

from trims_client.session import Session, connect
from trims_client.shared import open_file
from trims_client.weights import Weights

__all__ = ["Session", "Weights", "connect", "open_file"]
