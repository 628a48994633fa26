"""Sequence parallel: as tensor parallel, and between its pairs each worker has a part of every sequence, so that norms and
dropout are computed once and activations are held once. All-reduces become a reduce-scatter and an all-gather.

    python examples/training/sequence_parallel.py
"""
import functools

import torch
from fit import fit
from model import Transformer, loss_of

import dtorch
from dtorch import ColwiseParallel, PrepareModuleInput, Replicate, RowwiseParallel, SequenceParallel, Shard

PLAN = {
    "layers.*.norm?": SequenceParallel(), "layers.*.drop?": SequenceParallel(), "norm": SequenceParallel(),
    "layers.*.attention": PrepareModuleInput(desired_input_layouts=Replicate()),
    "layers.*.attention.query": ColwiseParallel(), "layers.*.attention.key": ColwiseParallel(),
    "layers.*.attention.value": ColwiseParallel(), "layers.*.attention.out": RowwiseParallel(output_layouts=Shard(1)),
    "layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel(output_layouts=Shard(1)),
    "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def train(workers, steps=20):
    """The losses, on the session's first workers."""
    mesh = dtorch.init_device_mesh("dtorch", (workers,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = dtorch.parallelize_module(Transformer(), mesh["tp"], PLAN)
    split = functools.partial(dtorch.distribute_tensor, device_mesh=mesh, placements=[Shard(1)])
    everywhere = functools.partial(dtorch.distribute_tensor, device_mesh=mesh)
    return fit(model.parameters(), steps, lambda tokens, targets: loss_of(model, split(tokens), everywhere(targets)))


if __name__ == "__main__":
    with dtorch.start(workers=2):
        print(*(f"{loss:.4f}" for loss in train(2)))
