"""The loop that the examples of this folder share."""
import torch
from model import batches


def fit(parameters, steps, loss):
    """The losses of so many steps of AdamW. `loss(tokens, targets)`: of a batch, which comes on the CPU."""
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    losses = []
    torch.manual_seed(1)  # of dropout
    for tokens, targets in batches(steps):
        optimizer.zero_grad()
        value = loss(tokens, targets)
        value.backward()
        optimizer.step()
        losses.append(value.detach())  # no step waits for a value
    return [value.item() for value in losses]
