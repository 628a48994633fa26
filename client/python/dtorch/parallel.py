"""Modules whose parameters and inputs lie in parts, with the names and meaning of torch.distributed.tensor.parallel.

    mesh = dtorch.init_device_mesh("dtorch", (2,), mesh_dim_names=("tp",))
    parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})

Where things lie changes what is computed where, and what is sent; it never changes the result.
"""
import abc
import contextlib
import fnmatch

import torch
from torch import nn

from ._placement import Replicate, Shard
from .mesh import default_mesh
from .tensor import distribute_tensor
from .transfer import Bar


# While modules are placed: of each parameter, by its id, itself, where it was placed and what it became; and what shows how
# far that is.
_moved = None
_bar = None


@contextlib.contextmanager
def _placing(module, progress):
    """Parameters that several modules share are shared afterwards, too."""
    global _moved, _bar
    if _moved is not None:
        yield
        return
    there = [*module.parameters(), *module.buffers()]
    with Bar("upload", [each for each in there if each.device.type != "dtorch"], progress) as _bar:
        _moved = {}
        try:
            yield
        finally:
            _moved = _bar = None


def _placed(parameter, mesh, placements):
    """The parameter, moved. Along dimensions of the whole mesh that `mesh` has not, it stays as it was. ValueError: another
    module shares it, and wants it elsewhere."""
    where = f"{mesh}: {placements}"
    if _moved is not None and id(parameter) in _moved:
        _, there, made = _moved[id(parameter)]
        if there != where:
            raise ValueError(f"a parameter that modules share is to lie on {there} and on {where}")
        return made
    if parameter.device.type == "dtorch":
        moved = parameter.detach().redistribute(mesh, placements)
    else:
        moved = distribute_tensor(parameter.detach(), mesh, placements)
    made = nn.Parameter(moved, requires_grad=parameter.requires_grad)
    if _moved is not None:
        _moved[id(parameter)] = parameter, where, made
        _bar.update(parameter)
    return made


def _replicate_rest(module, mesh):
    for name, parameter in list(module._parameters.items()):
        if parameter is None:
            continue
        if id(parameter) in _moved:
            setattr(module, name, _moved[id(parameter)][2])
        elif parameter.device.type != "dtorch":
            setattr(module, name, _placed(parameter, mesh, [Replicate()] * mesh.ndim))
    for name, buffer in module._buffers.items():
        if buffer is None or buffer.device.type == "dtorch":
            continue
        if id(buffer) not in _moved:
            _moved[id(buffer)] = buffer, None, distribute_tensor(buffer, mesh)
            _bar.update(buffer)
        module._buffers[name] = _moved[id(buffer)][2]


def distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None, progress=False):
    """Brings a module's parameters and buffers to a mesh (default: the default one): as `partition_fn(name, submodule,
    mesh)` sets them, the others Replicate. What is on the device already stays where it is. `input_fn(module,
    inputs, mesh)` and `output_fn(module, outputs, mesh)` see what goes in and comes out, and may return something else
    instead. `progress`: show a bar, as the other functions here do."""
    mesh = device_mesh or default_mesh()
    with _placing(module, progress):
        for name, part in module.named_modules():
            if partition_fn is not None:
                partition_fn(name, part, mesh)
            _replicate_rest(part, mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda module, inputs: input_fn(module, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda module, inputs, outputs: output_fn(module, outputs, mesh))
    return module


class ParallelStyle(abc.ABC):
    """How a module lies on a mesh of one dimension."""

    @abc.abstractmethod
    def apply(self, module, mesh):
        """The module, placed."""


def _to(value, mesh, layout):
    return value if layout is None or not isinstance(value, torch.Tensor) else value.redistribute(mesh, [layout])


def _each(values, mesh, layouts):
    """For a module's inputs or outputs: those that have a layout are moved to it."""
    if isinstance(values, torch.Tensor):
        return _to(values, mesh, layouts[0])
    if len(values) != len(layouts):
        raise ValueError(f"{len(layouts)} layouts for {len(values)} values")
    moved = [_to(value, mesh, layout) for value, layout in zip(values, layouts)]
    return type(values)(*moved) if hasattr(values, "_fields") else type(values)(moved)


class _Split(ParallelStyle):
    """Of a module with a weight: where its parameters and its output lie. A tensor knows where it lies itself:
    `input_layouts` is taken for programs that name it, and not needed."""

    parameters = {}  # by the kind of module, then by name

    def __init__(self, *, input_layouts=None, output_layouts):
        del input_layouts
        self.output_layouts = output_layouts

    def apply(self, module, mesh):
        for kind, layouts in self.parameters.items():
            if isinstance(module, kind):
                break
        else:
            raise TypeError(f"{type(self).__name__} is for {', '.join(kind.__name__ for kind in self.parameters)}, not for "
                            f"{type(module).__name__}")
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, _placed(parameter, mesh, [layouts[name]]))
        module.register_forward_pre_hook(lambda _, inputs: (_to(inputs[0], mesh, self.inner_input(module)), *inputs[1:]))
        module.register_forward_hook(lambda _, inputs, output: _to(output, mesh, self.output_layouts))
        return module

    @abc.abstractmethod
    def inner_input(self, module):
        """Where the first input lies for the kernel."""


class ColwiseParallel(_Split):
    """A Linear whose outputs are split, or an Embedding whose vectors are: each worker has some of the columns. The output
    is split along its last dimension, unless told otherwise."""

    parameters = {nn.Linear: {"weight": Shard(0), "bias": Shard(0)}, nn.Embedding: {"weight": Shard(1)}}

    def __init__(self, *, input_layouts=None, output_layouts=None):
        super().__init__(input_layouts=input_layouts, output_layouts=output_layouts or Shard(-1))

    def inner_input(self, module):
        return Replicate()


class RowwiseParallel(_Split):
    """A Linear whose inputs are split, or an Embedding whose rows are: what each worker gives is added up. The output is
    Replicate, unless told otherwise."""

    parameters = {nn.Linear: {"weight": Shard(1), "bias": Replicate()}, nn.Embedding: {"weight": Shard(0)}}

    def __init__(self, *, input_layouts=None, output_layouts=None):
        super().__init__(input_layouts=input_layouts, output_layouts=output_layouts or Replicate())

    def inner_input(self, module):
        return Shard(-1) if isinstance(module, nn.Linear) else Replicate()


class SequenceParallel(ParallelStyle):
    """A module that looks at each place of a sequence alone, as LayerNorm, RMSNorm and Dropout do: parameters Replicate,
    input and output split along `sequence_dim`."""

    def __init__(self, *, sequence_dim=1):
        self.sequence_dim = sequence_dim

    def apply(self, module, mesh):
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, _placed(parameter, mesh, [Replicate()]))
        module.register_forward_pre_hook(lambda _, inputs: (_to(inputs[0], mesh, Shard(self.sequence_dim)), *inputs[1:]))
        return module


class PrepareModuleInput(ParallelStyle):
    """Brings the inputs of a module to where they are wanted: a layout for each (None: as it is), and for those given by
    name in `desired_input_kwarg_layouts`."""

    def __init__(self, *, desired_input_layouts=(), desired_input_kwarg_layouts=None):
        self.layouts = (desired_input_layouts,) if isinstance(desired_input_layouts, Shard) else desired_input_layouts
        self.named = desired_input_kwarg_layouts or {}

    def apply(self, module, mesh):
        def prepare(_, inputs, named):
            named = {name: _to(value, mesh, self.named.get(name)) for name, value in named.items()}
            return _each(inputs, mesh, self.layouts) if self.layouts else inputs, named

        module.register_forward_pre_hook(prepare, with_kwargs=True)
        return module


class PrepareModuleOutput(ParallelStyle):
    """Brings the outputs of a module to where they are wanted: a layout for each (None: as it is)."""

    def __init__(self, *, desired_output_layouts):
        self.layouts = (desired_output_layouts,) if isinstance(desired_output_layouts, Shard) else desired_output_layouts

    def apply(self, module, mesh):
        module.register_forward_hook(lambda _, inputs, outputs: _each(outputs, mesh, self.layouts))
        return module


def parallelize_module(module, device_mesh=None, parallelize_plan=None, progress=False):
    """Applies styles to the submodules that a plan names ("layers.*.up": patterns), or one style to the module itself;
    the other parameters and buffers become Replicate on the mesh, unless they are on the device already. ValueError:
    a name that fits no submodule."""
    mesh = (device_mesh or default_mesh()).get_group()
    plan = {"": parallelize_plan} if isinstance(parallelize_plan, ParallelStyle) else parallelize_plan or {}
    with _placing(module, progress):
        for pattern, style in plan.items():
            found = [part for name, part in module.named_modules() if fnmatch.fnmatchcase(name, pattern)]
            if not found:
                raise ValueError(f"{pattern!r} names no submodule of {type(module).__name__}")
            for part in found:
                style.apply(part, mesh)
        return distribute_module(module, mesh)


def fully_shard(module, device_mesh=None, progress=False):
    """Splits the parameters of a module, with those of its submodules, among the workers of a mesh of one dimension, along
    their first dimension: of each, its gradient and the optimizer's state, a worker holds a part. While a submodule's
    forward runs, it has the whole of its own parameters, gathered; their gradients are reduce-scattered. Buffers are
    Replicate."""
    mesh = (device_mesh or default_mesh()).get_group()
    with _placing(module, progress):
        for part in module.modules():
            for name, parameter in list(part.named_parameters(recurse=False)):
                setattr(part, name, _placed(parameter, mesh, [Shard(0) if parameter.dim() else Replicate()]))
            if part._parameters and not hasattr(part, "_whole_in_forward"):  # which it has been given before
                part._whole_in_forward = _WholeInForward(mesh)
                part.register_forward_pre_hook(part._whole_in_forward.gather)
                part.register_forward_hook(part._whole_in_forward.scatter, always_call=True)
        return distribute_module(module, mesh)


class _WholeInForward:
    """The hooks of a module that has the whole of its parameters while its forward runs, also when that calls itself."""

    def __init__(self, mesh):
        self.mesh = mesh
        self.split = {}
        self.depth = 0

    def gather(self, module, inputs):
        if self.depth == 0:
            split = {name: parameter for name, parameter in module._parameters.items() if parameter is not None}
            whole = {name: parameter.redistribute(self.mesh, [Replicate()]) for name, parameter in split.items()}
            for name in split:
                del module._parameters[name]
            module.__dict__.update(whole)
            self.split = split
        self.depth += 1

    def scatter(self, module, inputs, output):
        if self.depth == 0:  # gather() has failed
            return
        self.depth -= 1
        if self.depth == 0:
            for name, parameter in self.split.items():
                del module.__dict__[name]
                module._parameters[name] = parameter
            self.split = {}
