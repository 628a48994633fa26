"""Distributed tensors in PyTorch: what torch.Tensor has more where its device is `dtorch`, and how such tensors come to
be.

    mesh = dtorch.init_device_mesh("dtorch", (2,))
    x = dtorch.distribute_tensor(torch.randn(6, 4), mesh, [dtorch.Shard(0)])
    x.placements                                   # [S(0)]
    x.redistribute([dtorch.Replicate()]).cpu()

A tensor is one value: operators see its whole shape, and give what PyTorch gives in one process, wherever its parts lie.
"""
import contextlib
import functools
import html

import torch

from . import client, device
from ._explanation import Redistribution
from ._library import Object
from ._placement import Partial, Replicate, Shard, text_of
from .mesh import DeviceMesh, default_mesh

_OPERATORS = torch.ops.dtorch_device


def _checked(placements, ndim):
    """With dimensions counted from the front. ValueError, TypeError."""
    checked = []
    for placement in placements:
        if not isinstance(placement, Shard):
            raise TypeError(f"{placement!r} is no placement: they are Shard, Replicate and Partial of dtorch")
        if type(placement) is Shard:
            if not -ndim <= placement.dim < ndim:
                raise ValueError(f"{placement} of a tensor with {ndim} dimensions")
            placement = Shard(placement.dim % ndim)
        checked.append(placement)
    return checked


def distribute_tensor(tensor, device_mesh=None, placements=None):
    """A tensor's value on the workers of a mesh (default: the default one), one placement for each of its dimensions
    (default: Replicate). From the CPU or from this device; a leaf, which requires a gradient if `tensor` does."""
    mesh = device_mesh or default_mesh()
    if tensor.device.type == "dtorch":
        return tensor.detach().redistribute(mesh, placements).requires_grad_(tensor.requires_grad)
    text = text_of(_checked(mesh.expand(placements), tensor.dim()))
    made = _OPERATORS.distribute(tensor.detach().cpu(), mesh._pointer, text)
    return made.requires_grad_(tensor.requires_grad)


def from_local(parts, device_mesh=None, placements=None, *, shape=None):
    """A tensor of what each worker of a mesh shall hold: CPU tensors, in the order of the mesh's ranks; of a Partial one,
    the summands. `shape`: of the whole; default: what the parts add up to. Differentiable: a part's gradient is that of
    what its worker holds; each replica gets all of it. RuntimeError (with the value): parts of a Shard that are not as
    torch.chunk() splits, replicas that differ."""
    mesh = device_mesh or default_mesh()
    if len(parts) != mesh._root.size():
        raise ValueError(f"{len(parts)} parts for the {mesh._root.size()} workers of {mesh._root}")
    placements = _checked(mesh.expand(placements), parts[0].dim())
    if shape is None:
        extents = torch.tensor([part.shape for part in parts], dtype=torch.int64)
        extents = extents.reshape(*mesh._root.mesh.shape, parts[0].dim())
        shape = [int(_whole_extent(extents[..., dim], placements, dim)) for dim in range(parts[0].dim())]
    return _FromParts.apply(mesh, placements, list(shape), *parts)


def _whole_extent(extents, placements, dim):
    for mesh_dim in reversed(range(len(placements))):
        split = type(placements[mesh_dim]) is Shard and placements[mesh_dim].dim == dim
        extents = extents.sum(mesh_dim) if split else extents.select(mesh_dim, 0)
    return extents


def handle_of(tensor):
    """The client library's Tensor of a tensor's value."""
    return client.Tensor(Object(_OPERATORS.handle(tensor)), device.session()._settings)


class TensorFuture:
    """A value on its way to this process. It can be awaited, by any asyncio program: `await x.get_async()`."""

    def __init__(self, future):
        self._future = future

    def done(self):
        """Whether wait() would return at once."""
        return self._future.done()

    def wait(self, timeout=None):
        """The value, a CPU tensor. TimeoutError after `timeout` seconds, then it can be waited for again; dtorch.Error:
        the first that the value depends on."""
        return self._of(self._future.wait(timeout))

    get = wait

    def __await__(self):
        return self._arrival().__await__()

    async def _arrival(self):
        return self._of(await self._future)

    def _of(self, value):
        return value.torch()


def get_async(tensor):
    """A TensorFuture of a tensor's whole value, which is asked for now."""
    return TensorFuture(handle_of(tensor).get())


def _redistribute(tensor, device_mesh=None, placements=None):
    """The same value, placed otherwise. `placements`: one for each dimension of the tensor's mesh or, as a dictionary, for
    those that are named (by name or number; the others stay). `device_mesh`: another one than the tensor's, through this
    process's memory; a part of the tensor's own mesh, as mesh["tp"], changes that part alone. Differentiable: the gradient
    comes to where `tensor` lies, Replicate where it is Partial."""
    if placements is None and not isinstance(device_mesh, DeviceMesh):
        device_mesh, placements = None, device_mesh
    info = None
    if isinstance(placements, dict) or (device_mesh is not None) or placements is None:
        info = handle_of(tensor).describe().wait()
    if device_mesh is None:
        mesh = _mesh_of(info) if info is not None else None
    else:
        mesh = device_mesh
        if not _is_on(info, mesh):
            if isinstance(placements, dict):
                raise ValueError(f"on another mesh than its own, {_mesh_of(info)}, a tensor needs all placements")
            return _Moved.apply(tensor, mesh, placements)
    if isinstance(placements, dict):
        whole = list(info.placements)
        for name, placement in placements.items():
            whole[mesh._dims[mesh.dim_of(name)]] = placement
    elif mesh is not None:
        whole = mesh.expand(placements, info.placements if mesh._root is not mesh else None)
    else:
        whole = placements
    return _OPERATORS.redistribute(tensor, text_of(_checked(whole, tensor.dim())))


def _is_on(info, mesh):
    return (info.mesh.ranks, info.mesh.shape) == (mesh._root.ranks, tuple(mesh._root.mesh.shape))


def _mesh_of(info):
    mesh = torch.tensor(info.mesh.ranks).reshape(info.mesh.shape)
    return DeviceMesh("dtorch", mesh, mesh_dim_names=info.mesh.names or None)


class _FromParts(torch.autograd.Function):
    """A tensor of what each worker shall hold."""

    @staticmethod
    def forward(context, mesh, placements, shape, *parts):
        context.where = mesh._root, placements
        return _OPERATORS.distribute_parts([part.detach() for part in parts], shape, mesh._pointer, text_of(placements))

    @staticmethod
    def backward(context, gradient):
        mesh, placements = context.where
        for dim, placement in enumerate(placements):
            if isinstance(placement, Partial):
                if placement.reduce_op not in ("sum", "avg"):
                    raise NotImplementedError(f"the gradient of from_local()'s parts for {placement}")
                gradient = gradient / mesh.size(dim) if placement.reduce_op == "avg" else gradient
        gradient = _redistribute(gradient, mesh, [Replicate() if isinstance(each, Partial) else each for each in placements])
        parts = [handle_of(gradient).get_local(rank) for rank in mesh.mesh.flatten().tolist()]
        return None, None, None, *(TensorFuture(part).wait() for part in parts)


class _Moved(torch.autograd.Function):
    """A tensor on another mesh."""

    @staticmethod
    def forward(context, tensor, mesh, placements):
        info = handle_of(tensor).describe().wait()
        context.source = _mesh_of(info), [Replicate() if isinstance(each, Partial) else each for each in info.placements]
        return distribute_tensor(tensor.detach().cpu(), mesh, placements)

    @staticmethod
    def backward(context, gradient):
        return distribute_tensor(gradient.cpu(), *context.source), None, None


def _full_tensor(tensor):
    """The same value, Replicate everywhere. Differentiable."""
    return _redistribute(tensor, [Replicate()] * len(handle_of(tensor).describe().wait().mesh.shape))


def _to_local(tensor, rank):
    """What `rank` holds, a CPU tensor; of a Partial tensor, its summand."""
    return TensorFuture(handle_of(tensor).get_local(rank)).wait()


def _placements(tensor):
    """Where the tensor's parts lie: a placement for each dimension of its mesh. Waits for the daemon's word."""
    return handle_of(tensor).describe().wait().placements


def _device_mesh(tensor):
    """The mesh that the tensor lies on. Waits for the daemon's word."""
    return _mesh_of(handle_of(tensor).describe().wait())


def _of_device(name, function, is_property=False):
    """An attribute that torch.Tensor has on this device only: programs look for it to know such tensors."""
    def get(tensor):
        if tensor.device.type != "dtorch":
            raise AttributeError(f"a tensor on the device {tensor.device} has no {name}: tensors on dtorch have")
        return function(tensor) if is_property else functools.partial(function, tensor)

    setattr(torch.Tensor, name, property(get, doc=function.__doc__))


_plain_repr = torch.Tensor.__repr__


def _repr(tensor, *, tensor_contents=None):
    if tensor.device.type != "dtorch" or isinstance(tensor, torch._subclasses.FakeTensor):
        return _plain_repr(tensor, tensor_contents=tensor_contents)
    # The values as the CPU shows them, from one message instead of an operator for each of them.
    info = handle_of(tensor).describe().wait()
    more = [f"device='{tensor.device}'", f"placements={info.placements}"]
    if tensor.grad_fn is not None:
        more.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        more.append("requires_grad=True")
    return f"{_plain_repr(tensor.detach().cpu())[:-1]}, {', '.join(more)})"


def _repr_html(tensor):
    """For notebooks: what it is, where it lies, and its values, cut as PyTorch cuts them."""
    mesh = tensor.device_mesh
    values = html.escape(_plain_repr(tensor.detach().cpu()))
    return (f"<div><b>tensor</b> {html.escape(str(tensor.dtype))} {list(tensor.shape)}, placements "
            f"{html.escape(str(tensor.placements))} on {mesh._repr_html_()}<pre>{values}</pre></div>")


torch.Tensor.__repr__ = _repr
_of_device("_repr_html_", _repr_html)
_of_device("redistribute", _redistribute)
_of_device("full_tensor", _full_tensor)
_of_device("to_local", _to_local)
_of_device("get_async", get_async)
_of_device("placements", _placements, True)
_of_device("device_mesh", _device_mesh, True)


@contextlib.contextmanager
def explicit_redistribution(explicit=True):
    """Within it, operators whose inputs no placement rule takes as they lie are refused, where otherwise they redistribute
    them, as cheaply as can be. For all threads of this process."""
    before = _OPERATORS.use_implicit_redistribution(not explicit)
    try:
        yield
    finally:
        _OPERATORS.use_implicit_redistribution(before)


def explain(operator, *arguments, **named):
    """How a call would be placed, without running it: an Explanation, whose text lists the candidates with what each
    moves. `operator`: an overload as torch.ops.aten.mm.default, or its name as "aten::add.Tensor"."""
    name = operator if isinstance(operator, str) else operator.name()
    outputs = 1 if isinstance(operator, str) else len(operator._schema.returns)
    convert = functools.partial(torch.utils._pytree.tree_map_only, torch.Tensor, handle_of)
    return device.session().explain(name, *convert(arguments), outputs=outputs, **convert(named))


class Communications(list):
    """What was moved within a block: Redistributions, with their counts."""

    @property
    def collectives(self):
        """How many of each kind: {"all_reduce": 2}."""
        counts = {}
        for moved in self:
            for kind in moved.collectives:
                counts[kind] = counts.get(kind, 0) + moved.count
        return counts

    @property
    def bytes(self):
        """That a worker receives at most."""
        return sum(moved.count * moved.bytes for moved in self)

    def __repr__(self):
        return "\n".join(map(repr, self)) or "nothing was moved"


@contextlib.contextmanager
def communications():
    """A log of what the workers move for what is called within the block; complete when it ends.

        with dtorch.communications() as log:
            loss.backward()
        print(log, log.collectives, log.bytes)
    """
    session = device.session()
    session.synchronize().wait()
    before = {_key(moved): moved.count for moved in session.redistributions()}
    log = Communications()
    try:
        yield log
    finally:
        session.synchronize().wait()
        for moved in session.redistributions():
            moved.count -= before.get(_key(moved), 0)
            if moved.count > 0:
                log.append(moved)


def _key(moved: Redistribution):
    return (moved.operator, moved.site, moved.inner, moved.input, str(moved.source), str(moved.target), moved.bytes)


@torch.library.register_fake("dtorch_device::redistribute")
def _(tensor, placements):
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@torch.library.register_fake("dtorch_device::as_gradient_of")
def _(gradient, tensor, share):
    return torch.empty_like(gradient, memory_format=torch.contiguous_format)
