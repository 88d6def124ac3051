"""Functions on platforms: the client's module under its public name."""

from typing import TYPE_CHECKING

from trims.public import stand_for

if TYPE_CHECKING:
    from trims_client.faas import *  # noqa: F403 - every public name

stand_for(__name__, "trims_client.faas")
