"""Data parallel: parameters on every worker, each batch split among them. Gradients arise as sums of what the workers
have, and are all-reduced once, when they reach their parameters.

    python examples/training/data_parallel.py
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
    model = dtorch.distribute_module(Transformer(), mesh)
    split = functools.partial(dtorch.distribute_tensor, device_mesh=mesh, placements=[Shard(0)])
    return fit(model.parameters(), steps, lambda tokens, targets: loss_of(model, split(tokens), split(targets)))


if __name__ == "__main__":
    with dtorch.start(workers=2):
        print(*(f"{loss:.4f}" for loss in train(2)))
