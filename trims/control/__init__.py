"""A typed client of the control door: models, residency and the daemon itself, blocking (`Admin`) or asyncio."""

from trims.control.answers import (
    Change,
    Device,
    Evicted,
    Health,
    Holder,
    Loading,
    Model,
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
    "AsyncAdmin",
    "Change",
    "Device",
    "Evicted",
    "Health",
    "Holder",
    "Loading",
    "Model",
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
