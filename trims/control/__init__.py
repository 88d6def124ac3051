"""A typed client of the control door: models, residency and the daemon itself, blocking (`Admin`) or asyncio.

Doors: `client`, `answers`.
"""

from trims.control.answers import (
    Aliases,
    Change,
    Device,
    Evicted,
    Health,
    Holder,
    Loading,
    Model,
    ModelAlias,
    Replica,
    Report,
    Residents,
    Stats,
    Status,
    TensorInfo,
    Tier,
)
from trims.control.client import Admin, AsyncAdmin, aadmin, admin

__all__ = [
    "Admin",
    "Aliases",
    "AsyncAdmin",
    "Change",
    "Device",
    "Evicted",
    "Health",
    "Holder",
    "Loading",
    "Model",
    "ModelAlias",
    "Replica",
    "Report",
    "Residents",
    "Stats",
    "Status",
    "TensorInfo",
    "Tier",
    "aadmin",
    "admin",
]
