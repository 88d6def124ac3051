"""PyTorch over shared weights: the client's module under its public name."""

from typing import TYPE_CHECKING

from trims.public import stand_for

if TYPE_CHECKING:
    from trims_client.frameworks.torch import *  # noqa: F403 - every public name

stand_for(__name__, "trims_client.frameworks.torch", "trims[torch]")
