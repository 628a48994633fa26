"""Meshes of workers, as PyTorch's device meshes."""
import functools
import html
import math
import weakref

import torch

from . import device
from ._placement import Replicate, text_of


class DeviceMesh:
    """Workers by their ranks, arranged in one or more dimensions, which may have names.

    `mesh`: the ranks, as nested lists or a tensor of integers. A mesh["tp"] of a mesh with more dimensions is the same
    workers seen along that dimension alone: what is placed on it is Replicate along the others. A mesh is the default
    one within `with mesh:`. ValueError: a rank twice, or names that do not fit.
    """

    def __init__(self, device_type, mesh, *, mesh_dim_names=None):
        if device_type != "dtorch":
            raise ValueError(f"a mesh of the device {device_type!r}: this one is of \"dtorch\"")
        self.device_type = device_type
        self.mesh = torch.as_tensor(mesh, dtype=torch.int64, device="cpu")
        if self.mesh.dim() == 0:
            self.mesh = self.mesh.reshape(1)
        self.mesh_dim_names = tuple(mesh_dim_names) if mesh_dim_names else None
        self._root = self
        self._dims = tuple(range(self.mesh.dim()))
        self._made = weakref.WeakKeyDictionary()  # the client's meshes, by session
        self._before = []
        ranks = self.ranks
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"a rank is twice in {self.mesh.tolist()}")
        names = self.mesh_dim_names or ()
        if names and (len(names) != self.ndim or len(set(names)) != len(names)):
            raise ValueError(f"{self.ndim} dimensions cannot be named {names}")

    @property
    def ranks(self):
        """In row-major order."""
        return tuple(self.mesh.flatten().tolist())

    @property
    def ndim(self):
        return len(self._dims)

    @property
    def shape(self):
        return tuple(self._root.mesh.shape[dim] for dim in self._dims)

    def size(self, mesh_dim=None):
        """How many workers along a dimension, or in all."""
        return math.prod(self.shape) if mesh_dim is None else self.shape[mesh_dim]

    def dim_of(self, name):
        """The number of a dimension, by its name or number. KeyError, IndexError."""
        if isinstance(name, int):
            return range(self.ndim)[name]
        if name not in (self.mesh_dim_names or ()):
            raise KeyError(f"no dimension {name!r} in {self}")
        return self.mesh_dim_names.index(name)

    def __getitem__(self, names):
        """The mesh seen along some of its named dimensions."""
        names = (names,) if isinstance(names, str) else tuple(names)
        dims = [self.dim_of(name) for name in names]
        part = object.__new__(DeviceMesh)
        part.__dict__.update(self.__dict__, mesh_dim_names=names, _dims=tuple(self._dims[dim] for dim in dims), _before=[])
        rest = [dim for dim in range(self._root.mesh.dim()) if dim not in part._dims]
        part.mesh = self._root.mesh.permute(*rest, *part._dims)[(0,) * len(rest)]
        return part

    def unbind(self, mesh_dim):
        """The meshes of the other dimensions, one for each index along `mesh_dim` (a name or a number): for instance the
        stages of a pipeline."""
        if self._root is not self or self._dims != tuple(range(self.mesh.dim())):
            raise ValueError("a part of a mesh is not unbound: unbind the mesh itself")
        dim = self.dim_of(mesh_dim)
        names = self.mesh_dim_names and [name for i, name in enumerate(self.mesh_dim_names) if i != dim]
        return tuple(DeviceMesh(self.device_type, part, mesh_dim_names=names) for part in self.mesh.unbind(dim))

    def get_group(self, mesh_dim=None):
        """What the collectives of dtorch.collectives take as a group: the mesh, along one dimension."""
        if mesh_dim is None:
            if self.ndim != 1:
                raise ValueError(f"which of the dimensions of {self}?")
            return self
        if self.ndim == 1 and self.dim_of(mesh_dim) == 0:
            return self
        if self.mesh_dim_names is None:
            raise ValueError(f"the dimensions of {self} have no names")
        return self[self.mesh_dim_names[self.dim_of(mesh_dim)]]

    def expand(self, placements, others=None):
        """One placement for each dimension of the whole mesh, of those for the dimensions of this part. `others`: of the
        whole mesh; default: Replicate."""
        placements = list(placements if placements is not None else [Replicate()] * self.ndim)
        if len(placements) != self.ndim:
            raise ValueError(f"{len(placements)} placements for the {self.ndim} dimensions of {self}")
        whole = list(others) if others is not None else [Replicate()] * self._root.mesh.dim()
        for dim, placement in zip(self._dims, placements):
            whole[dim] = placement
        return whole

    def client_mesh(self):
        """The client library's mesh of the current session. dtorch.Error: a rank that there is not."""
        session = device.session()
        root = self._root
        if session not in root._made:
            root._made[session] = session.seeded(session.mesh(root.ranks, root.mesh.shape, root.mesh_dim_names))
        return root._made[session]

    @property
    def _pointer(self):
        return self.client_mesh()._object.pointer

    def __enter__(self):
        before = _default
        set_default_mesh(self)
        self._before.append(before)
        return self

    def __exit__(self, *_):
        before = self._before.pop()
        if _default is self and _default_of is device._session:  # else its session has ended within the block
            set_default_mesh(before)

    def _key(self):
        return self._root.mesh.shape, self._root.ranks, self._root.mesh_dim_names, self._dims

    def __eq__(self, other):
        return isinstance(other, DeviceMesh) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def __repr__(self):
        if self._root is not self:
            return f"{self._root}[{', '.join(map(repr, self.mesh_dim_names))}]"
        names = f", mesh_dim_names={self.mesh_dim_names}" if self.mesh_dim_names else ""
        return f"DeviceMesh({self.device_type!r}, {self.mesh.tolist()}{names})"

    def _repr_html_(self):
        """For notebooks: a table of the ranks, its inner dimensions within its cells."""
        def table(part):
            if part.dim() == 0:
                return str(int(part))
            cells = [f"<td style='border:1px solid'>{table(each)}</td>" for each in part]
            rows = ["".join(cells)] if part.dim() == 1 else cells
            return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"

        names = self.mesh_dim_names or [""] * self.ndim
        title = " x ".join(f"{html.escape(name)} {extent}" for name, extent in zip(names, self.shape))
        return f"<div><b>DeviceMesh</b> {title}{table(self.mesh)}</div>"


def init_device_mesh(device_type, mesh_shape, *, mesh_dim_names=None):
    """The first workers, in row-major order: init_device_mesh("dtorch", (2, 4), mesh_dim_names=("dp", "tp"))."""
    mesh_shape = (mesh_shape,) if isinstance(mesh_shape, int) else tuple(mesh_shape)
    return DeviceMesh(device_type, torch.arange(math.prod(mesh_shape)).reshape(mesh_shape), mesh_dim_names=mesh_dim_names)


_default = None
_default_of = None  # the session, which takes it along when it ends


def default_mesh():
    """Where new tensors lie, replicated: the innermost `with mesh:`, else all workers in one dimension."""
    session = device.session()
    return _default if _default is not None and _default_of is session else _world(session.world_size)


@functools.lru_cache
def _world(size):
    return init_device_mesh("dtorch", size)


def set_default_mesh(mesh):
    """For all threads of this process, until the session ends. None: all workers."""
    global _default, _default_of
    if mesh is None:
        torch.ops.dtorch_device.use_destination(0, "")
    else:
        torch.ops.dtorch_device.use_destination(mesh._pointer, text_of(mesh.expand(None)))
    _default, _default_of = mesh, device.session()
