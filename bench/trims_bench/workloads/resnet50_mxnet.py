"""ResNet-50 classifies one image with MXNet, as `vgg16` does."""

from __future__ import annotations

from trims_bench.workloads.vgg16 import framework_alone, prepare, same, with_trims

__all__ = ["framework_alone", "prepare", "same", "with_trims"]
