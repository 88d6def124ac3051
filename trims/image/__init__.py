"""The weight image: one byte format in every tier. `docs/protocol.md` describes it for other languages.

`index` is the binary table of tensors, `reader` maps bytes to a Layout, `header` is the safetensors header with all
its checks, `plan` lays out a new image, `program` carries the graph. Reading needs the standard library only.
"""
