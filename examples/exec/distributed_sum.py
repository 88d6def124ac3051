"""Add up over processes: torchrun --nproc-per-node 2 distributed_sum.py."""

import torch
import torch.distributed as processes

processes.init_process_group("gloo")
total = torch.tensor([processes.get_rank() + 1.0])
processes.all_reduce(total)
print(f"{total.item()} of {processes.get_world_size()}\n", end="", flush=True)
processes.destroy_process_group()
