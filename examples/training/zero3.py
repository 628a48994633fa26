"""ZeRO-3: as data parallel, and each worker holds a part of every parameter, of its gradient and of the optimizer's state.
A parameter is gathered where it is used; its gradient is reduce-scattered.

    python examples/training/zero3.py
"""
import torch
from model import Transformer, batches, loss_of

import dtorch
from dtorch import Shard


def train(workers, steps=20):
    """The losses, on the session's first workers."""
    mesh = dtorch.init_device_mesh("dtorch", (workers,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    model = dtorch.fully_shard(Transformer(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    torch.manual_seed(1)  # of dropout
    for tokens, targets in batches(steps):
        tokens, targets = (dtorch.distribute_tensor(each, mesh, [Shard(0)]) for each in (tokens, targets))
        optimizer.zero_grad()
        loss = loss_of(model, tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


if __name__ == "__main__":
    with dtorch.start(workers=2):
        print(*(f"{loss:.4f}" for loss in train(2)))
