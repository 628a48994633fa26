"""Sequence parallel: as tensor parallel, and between its pairs each worker has a part of every sequence, so that norms and
dropout are computed once and activations are held once. All-reduces become a reduce-scatter and an all-gather.

    python examples/training/sequence_parallel.py
"""
import torch
from model import Transformer, batches, loss_of

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
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    torch.manual_seed(1)  # of dropout
    for tokens, targets in batches(steps):
        tokens = dtorch.distribute_tensor(tokens, mesh, [Shard(1)])
        targets = dtorch.distribute_tensor(targets, mesh)
        optimizer.zero_grad()
        loss = loss_of(model, tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


if __name__ == "__main__":
    with dtorch.start(workers=2):
        print(*(f"{loss:.4f}" for loss in train(2)))
