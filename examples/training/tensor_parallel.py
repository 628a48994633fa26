"""Tensor parallel: the columns of one Linear and the rows of the next lie on different workers, as do the heads of
attention. Each pair all-reduces its output once, and its input's gradient once on the way back.

    python examples/training/tensor_parallel.py
"""
import functools

import torch
from fit import fit
from model import Transformer, loss_of

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
    everywhere = functools.partial(dtorch.distribute_tensor, device_mesh=mesh)
    return fit(model.parameters(), steps, lambda tokens, targets: loss_of(model, everywhere(tokens), everywhere(targets)))


if __name__ == "__main__":
    with dtorch.start(workers=2):
        print(*(f"{loss:.4f}" for loss in train(2)))
