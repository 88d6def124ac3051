"""Train a small network for three steps and print its losses to the last bit."""

import torch

torch.manual_seed(7)
network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
inputs, wanted = torch.randn(512, 64), torch.randn(512, 1)
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(network(inputs), wanted)
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
