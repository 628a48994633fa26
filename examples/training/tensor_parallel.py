"""Tensor parallel: the columns of one Linear and the rows of the next lie on different workers, as do the heads of
attention. Each pair all-reduces its output once, and its input's gradient once on the way back.

    python examples/training/tensor_parallel.py
"""
import torch
from model import Transformer, batches, loss_of

import dtorch
from dtorch import ColwiseParallel, RowwiseParallel

PLAN = {
    "layers.*.attention.query": ColwiseParallel(), "layers.*.attention.key": ColwiseParallel(),
    "layers.*.attention.value": ColwiseParallel(), "layers.*.attention.out": RowwiseParallel(),
    "layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel(),
}


def train(workers, steps=20):
    """The losses, on the session's first workers."""
    mesh = dtorch.init_device_mesh("dtorch", (workers,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = dtorch.parallelize_module(Transformer(), mesh["tp"], PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    torch.manual_seed(1)  # of dropout
    for tokens, targets in batches(steps):
        tokens, targets = (dtorch.distribute_tensor(each, mesh) for each in (tokens, targets))
        optimizer.zero_grad()
        loss = loss_of(model, tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


if __name__ == "__main__":
    with dtorch.start(workers=2):
        print(*(f"{loss:.4f}" for loss in train(2)))
