"""Labels of outputs: the lines of the file that the manifest names, as it is now."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from trims_predictors.children.launcher import Environment
from trims_predictors.deployment.deployment import Deployment
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.endpoint.requests.labels import Labels

from trims.core.errors import NotSupportedError
from trims.manifests.serving import TensorType

if TYPE_CHECKING:
    from pathlib import Path


def deployment_of(folder: Path, labels: str) -> Deployment:
    outputs = (TensorType("y", "FP32", (2,), labels=labels), TensorType("z", "FP32", (2,)))
    return Deployment(
        DeploymentKey("m", "1"), "m", "1", "a:B", Environment("numpy"), origin=str(folder), outputs=outputs
    )


def test_labels_are_the_lines_of_the_file_beside_the_manifest_as_it_is_now(folder: Path) -> None:
    file, labels, deployment = folder / "classes.txt", Labels(), deployment_of(folder, "classes.txt")
    file.write_text("cat\ndog\n")
    assert asyncio.run(labels.of(deployment, "y")) == [b"cat", b"dog"]
    file.write_text("cow\nsow\n")
    os.utime(file, (1, 1))
    assert asyncio.run(labels.of(deployment, "y")) == [b"cow", b"sow"]
    assert asyncio.run(labels.of(deployment, "z")) == []


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(NotSupportedError, match=r"absent\.txt"):
        asyncio.run(Labels().of(deployment_of(folder, "absent.txt"), "y"))
