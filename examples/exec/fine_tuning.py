"""Train a checkpoint for three steps, each of which writes every parameter: python fine_tuning.py CHECKPOINT.

A checkpoint is the state of `torch.nn.Linear(1024, 1024)`. The losses are printed to the last bit.
"""

import sys

import torch

torch.manual_seed(7)
network = torch.nn.Linear(1024, 1024, device="meta")
network.load_state_dict(torch.load(sys.argv[1]), assign=True)
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
inputs, wanted = torch.randn(32, 1024), torch.randn(32, 1024)
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(network(inputs), wanted)
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
