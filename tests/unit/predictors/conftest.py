"""Fixtures that tests of predictors share."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that templates import from."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    (folder / "spoils.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    (folder / "harmless.py").write_text("x = 1")
    (folder / "hangs.py").write_text("import time; time.sleep(600)")
    (folder / "exits.py").write_text("import os; os._exit(3)")
    return folder


@pytest.fixture(scope="module")
def grpc_poller() -> Iterator[None]:
    """gRPC's thread for asyncio, which it keeps as long as it likes: it is there before leaks are counted."""
    import grpc

    async def begin() -> Any:
        return grpc.aio.insecure_channel("127.0.0.1:1"), grpc.aio.server()

    kept = asyncio.run(begin())
    yield
    del kept
