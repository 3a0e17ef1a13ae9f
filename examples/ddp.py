"""The same loss on any number of processes: value and gradient are those of one process on the
joined batch.

python examples/ddp.py
torchrun --nproc-per-node 2 examples/ddp.py
"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nearfar.losses import SimCLR

torch.manual_seed(0)  # the same weights and views everywhere
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
images = torch.from_numpy(load_digits().images).float()[:, None] / 16  # [1797, 1, 8, 8]

net: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
net = DistributedDataParallel(net) if world > 1 else net
loss_of = SimCLR(gather=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

for epoch in range(3):
    for index in torch.randperm(len(images)).split(256):
        views = images[index] + 0.3 * torch.randn(2, len(index), 1, 8, 8)
        first, second = net(views[:, rank::world].flatten(0, 1)).chunk(
            2
        )  # this process's share of the images
        loss = loss_of(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}  loss {loss.item():.5f}", flush=True)
if world > 1:
    dist.destroy_process_group()
