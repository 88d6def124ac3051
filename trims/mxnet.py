"""MXNet over shared weights: the client's module under its public name."""

from typing import TYPE_CHECKING

from trims.public import stand_for

if TYPE_CHECKING:
    from trims_client.frameworks.mxnet import *  # noqa: F403 - every public name

stand_for(__name__, "trims_client.frameworks.mxnet", "trims[mxnet]")
