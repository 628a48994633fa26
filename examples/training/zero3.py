"""ZeRO-3: as data parallel, and each worker holds a part of every parameter, of its gradient and of the optimizer's state.
A parameter is gathered where it is used; its gradient is reduce-scattered.

    python examples/training/zero3.py
"""
import functools

import torch
from fit import fit
from model import Transformer, loss_of

import dtorch
from dtorch import Shard


def train(workers, steps=20):
    """The losses, on the session's first workers."""
    mesh = dtorch.init_device_mesh("dtorch", (workers,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    model = dtorch.fully_shard(Transformer(), mesh)
    split = functools.partial(dtorch.distribute_tensor, device_mesh=mesh, placements=[Shard(0)])
    return fit(model.parameters(), steps, lambda tokens, targets: loss_of(model, split(tokens), split(targets)))


if __name__ == "__main__":
    with dtorch.start(workers=2):
        print(*(f"{loss:.4f}" for loss in train(2)))
