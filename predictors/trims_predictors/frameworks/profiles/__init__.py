"""Profiles of single runs by the frameworks' own profilers, as events with ids; no framework is imported.

Doors: `kineto`, `onnx_profile`, `mxnet_profile`.
"""
