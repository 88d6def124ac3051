"""ResNet-50 as an MXNet symbol: float32, input `data` [N, 3, 224, 224], 1000 logits.

Needs the MXNet environment. The architecture is that of gluon's model zoo: He et al., "Identity Mappings in Deep
Residual Networks", 2016 (v2): 25.6 million parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "resnet50"
SHAPE = (1, 3, 224, 224)


def build(out_dir: Path, *, seed: int, layers: int = 50) -> str:
    """Write `resnet50-symbol.json` and `resnet50-0000.params` (98 MiB); returns the symbol's name.

    Args:
        out_dir: Where to.
        seed: Of the weights.
        layers: As many as the zoo has a model of, 18 at the least; for tests of what uses the model.
    """
    import mxnet as mx
    from mxnet.gluon.model_zoo import vision

    mx.random.seed(seed)
    net = vision.get_model(f"resnet{layers}_v2", prefix="resnet_")
    net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    net.hybridize()
    net(mx.nd.zeros(SHAPE))  # which gives all parameters their shapes
    net.export(str(out_dir / PREFIX))
    return f"{PREFIX}-symbol.json"
