"""Made-up answers of a daemon to an operator, and a control client that gives them: for tests of commands."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trims.control import Device, Health, Model, Replica, Stats, Status, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

REPLICA = Replica(
    key="0123456789abcdef" * 2,
    place="cpu",
    state="sealed",
    nbytes=2048,
    leases=0,
    waiters=0,
    pinned=False,
    keep_left_s=None,
    cost_s=1.5,
    uses=3,
    idle_s=0.0,
    digest="d",
    location="trims.segment",
    generation=1,
    names=("bert",),
    holders=(),
    story=(),
    device="",
)
MODEL = Model(
    name="bert",
    version="1.0.0",
    description="",
    framework="pytorch",
    format="",
    key="",
    replicas=(),
    manifest_json="{}",
    image_bytes=0,
    license="",
    origin="",
    in_memory="",
)
DEVICE = Device(
    place="gpu:0",
    uuid="GPU-1",
    name="H200",
    driver="vmm",
    keeper_pid=7,
    keeper_awake=True,
    weights_bytes=1 << 20,
    capacity_bytes=1 << 30,
    free_bytes=None,
    total_bytes=1 << 31,
    leases=2,
    trouble="",
)
STATUS = Status(
    Health("serving", "0.1.0", 42, "boot", 1, "/state"),
    Stats(
        counters={},
        tiers=(Tier("cpu", 4096, 1024, 1, "lru"),),
        sessions=2,
        leases=3,
        uptime_s=5.0,
        devices=(),
        gpu_off="",
        unverified_bytes=0,
        max_files=100,
        max_sessions=10,
        max_images=20,
        images=1,
    ),
)


def a_replica(**fields: Any) -> Replica:
    """The replica above with other fields."""
    return replace(REPLICA, **fields)


class Operator:
    """Answers every order with what a test gave it, and keeps the orders."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.orders: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def order(*values: Any, **named: Any) -> Any:
            self.orders.append((name, values, named))
            answer = self.answers.get(name)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return order

    @contextmanager
    def admin(self, runtime_dir: str | None) -> Iterator[Operator]:
        """In the place of `trims.control.admin`."""
        yield self
