"""Collectives as functions of distributed tensors. Each changes where a value lies along one dimension of a mesh, its
`group` (a mesh of one dimension, or mesh["tp"] of a larger one), and its gradient takes the way back:

    function           value                    gradient
    all_reduce         Partial -> Replicate     as it is: Replicate
    identity           Replicate -> Replicate   all_reduce
    all_gather         Shard -> Replicate       reduce_scatter
    reduce_scatter     Partial -> Shard(dim)    all_gather
    all_to_all         Shard(a) -> Shard(dim)   all_to_all to Shard(a)
    broadcast          one worker -> all        reduce to that worker
    reduce             Partial -> one worker    broadcast

A tensor that lies as the result shall is returned as it is. Parts may be uneven.
"""
from ._placement import Replicate, Shard
from .mesh import DeviceMesh


def all_reduce(tensor, group):
    """The sum (or what the Partial says) of all workers' parts, on each of them."""
    return tensor.redistribute(group, [Replicate()])


def identity(tensor, group):
    """A Replicate tensor, at the begin of what each worker computes a part of: its gradient is all-reduced."""
    return tensor.redistribute(group, [Replicate()])


def all_gather(tensor, group):
    """The parts of all workers, joined, on each of them."""
    return tensor.redistribute(group, [Replicate()])


def reduce_scatter(tensor, dim, group):
    """Of the sum of all workers' parts each gets a part, split along tensor dimension `dim`."""
    return tensor.redistribute(group, [Shard(dim)])


def all_to_all(tensor, dim, group):
    """A tensor that is split along one of its dimensions is split along `dim` instead."""
    return tensor.redistribute(group, [Shard(dim)])


def broadcast(tensor, mesh):
    """A tensor of one worker's, on all workers of a mesh. Through this process's memory."""
    return tensor.redistribute(mesh, [Replicate()] * mesh.ndim)


def reduce(tensor, rank):
    """The sum of all workers' parts, on worker `rank` alone. Through this process's memory."""
    return tensor.redistribute(DeviceMesh("dtorch", [rank]), [Replicate()])
