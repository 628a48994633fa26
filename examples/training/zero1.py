"""ZeRO-1: as data parallel, and each worker holds a part of the optimizer's state: gradients are reduce-scattered, each
worker steps its part of the parameters, and the parts are gathered.

    python examples/training/zero1.py
"""
import functools

import torch
from fit import fit
from model import Transformer, loss_of

import dtorch
from dtorch import Replicate, Shard


def train(workers, steps=20):
    """The losses, on the session's first workers."""
    mesh = dtorch.init_device_mesh("dtorch", (workers,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    model = Transformer()
    masters = {}  # the parts that the optimizer steps; the model's parameters are made of them
    for name, parameter in model.named_parameters():
        masters[name] = dtorch.distribute_tensor(parameter, mesh, [Shard(0)])
    split = functools.partial(dtorch.distribute_tensor, device_mesh=mesh, placements=[Shard(0)])

    def loss(tokens, targets):
        parameters = {name: master.redistribute([Replicate()]) for name, master in masters.items()}
        return loss_of(functools.partial(torch.func.functional_call, model, parameters), split(tokens), split(targets))

    return fit(masters.values(), steps, loss)


if __name__ == "__main__":
    with dtorch.start(workers=2):
        print(*(f"{loss:.4f}" for loss in train(2)))
