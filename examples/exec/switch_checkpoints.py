"""Switch among checkpoints, as image generators do: python switch_checkpoints.py, then a path on each line.

A checkpoint is the state of `torch.nn.Linear(1024, 1024)`. The output on ones is printed to the last bit.
"""

import sys

import torch

model = torch.nn.Linear(1024, 1024, device="meta")
for line in sys.stdin:
    model.load_state_dict(torch.load(line.rstrip("\n")), assign=True)
    with torch.inference_mode():
        print(model(torch.ones(1024)).sum().item().hex(), flush=True)
