"""Modules of torchvision and timm, whose packages `make torch-architectures` brings.

torchvision's operators are missing where its build does not fit torch's: they are declared here, and not used.
"""

from __future__ import annotations

from typing import Any

import torch

_OPERATORS = ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
TORCHVISION = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnext50_32x4d",
    "shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "swin_v2_t", "vit_b_16", "maxvit_t",
)  # fmt: skip
TIMM = (
    "vit_tiny_patch16_224", "mixer_s32_224", "convnextv2_atto", "efficientformer_l1", "levit_128s", "mobilevit_xxs",
    "poolformer_s12", "xcit_nano_12_p16_224", "swin_tiny_patch4_window7_224", "eva02_tiny_patch14_224", "nf_resnet26",
    "cait_xxs24_224", "coat_tiny", "edgenext_xx_small", "fastvit_t8", "ghostnet_100", "repvgg_a0", "volo_d1_224",
    "tiny_vit_5m_224", "maxxvit_rmlp_nano_rw_256", "mobilenetv4_conv_small",
)  # fmt: skip
_library: Any = None


def _torchvision() -> Any:
    global _library
    try:
        import torchvision
    except RuntimeError:
        _library = torch.library.Library("torchvision", "DEF")
        for name in (*_OPERATORS, *(f"_{each}_backward" for each in _OPERATORS)):
            _library.define(f"{name}(Tensor given) -> Tensor")
        import torchvision
    return torchvision


def build(name: str) -> Any:
    """Return an architecture with new values."""
    models = _torchvision().models
    if name in TIMM:
        import timm

        return timm.create_model(name, pretrained=False)
    quick = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, **quick)
