"""Frameworks over attached weights. Doors: `torch`, `onnxruntime`, `mxnet`, `cupy`."""
