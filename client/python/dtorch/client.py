"""The client library, without PyTorch: operators by their schema names on the tensors of a dtorchd's workers.

    import dtorch

    session = dtorch.client.connect()
    x = session.put([[1.0, 2.0], [3.0, 4.0]], placements=[dtorch.Shard(0)])
    y = session.call("aten::mm", x, x.redistribute([dtorch.Replicate()]))
    print(y.numpy())

Operators are ATen's, by their schema names. Calls do not wait and do not fail; the value that depends on a call that went
wrong raises dtorch.Error, with the operator that failed first and the line that called it.
"""
import asyncio
import base64
import contextlib
import ctypes
import errno
import functools
import json
import math
import os
import sys
import time
import typing
import weakref
from ctypes import byref, c_char_p, c_int32, c_void_p

from . import _memory, _placement, _types
from ._checker import Comparison, TensorChecker
from ._explanation import Explanation, Redistribution
from ._placement import Partial, Replicate, Shard, placement_of
from ._library import (Cancelled, DEADLINE_EXCEEDED, DeadlineExceeded, Error, HostTensor, LIBRARY, Object, OperatorFailed,
                       OverQuota, SessionInfo, Site, TensorLost, Unavailable, WorkerLost, check, encoded)
from ._types import Device, DType
from ._verification import RowResult, verify_rule
from ._wire import Encoder

__all__ = ["Cancelled", "Comparison", "DType", "DeadlineExceeded", "Device", "Error", "Explanation", "Future", "Mesh",
           "OperatorFailed", "OverQuota", "Partial", "Redistribution", "Replicate", "RowResult", "Session", "Shard",
           "Tensor", "TensorChecker", "TensorInfo", "TensorLost", "Unavailable", "Value", "WorkerLost", "connect"]

# The columns of dtorch::memory_stats: kMemoryColumns in core/memory_statistics.h.
_MEMORY_COLUMNS = ("allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "peak_reserved_bytes", "blocks",
                   "blocks_made")
_WAIT_PIECE = 0.1  # seconds between looks for a signal, such as Control-C


def _text(placements):
    return encoded(_placement.text_of(placements))


def _site():
    """Of the first caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").split(".")[0] == __package__ and frame.f_back is not None:
        frame = frame.f_back
    return Site(frame.f_code.co_filename.encode(), frame.f_lineno)


class Mesh:
    """Ranks, arranged in one or more dimensions. Made by Session.mesh."""

    def __init__(self, handle, session, ranks, shape, names=None):
        self._object = handle
        self._session = session  # its number: a reference would keep it open
        self.ranks = tuple(ranks)
        self.shape = tuple(shape)
        self.names = tuple(names or ())

    def __repr__(self):
        named = f", names={self.names}" if self.names else ""
        return f"Mesh(ranks={self.ranks}, shape={self.shape}{named})"


class MeshInfo(typing.NamedTuple):
    """The ranks of a mesh, in row-major order, its shape, and the names of its dimensions, if they have any."""
    ranks: tuple
    shape: tuple
    names: tuple


class TensorInfo:
    """What describe() tells of a tensor: global shape, strides in elements, dtype, placements, mesh."""

    def __init__(self, shape, strides, dtype, placements, mesh):
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.placements = placements
        self.mesh = mesh

    def __repr__(self):
        return f"TensorInfo({self.dtype}{list(self.shape)}, {self.placements})"


class Value(_types.ValueBase):
    """The value of a tensor, contiguous in host memory; immutable. numpy.asarray() and from_dlpack() take it without a
    copy."""

    def __init__(self, handle, struct):
        self._keep = handle
        self._address = struct.data
        self._bytes = struct.bytes
        self.dtype = _types.DTYPE_NAMES[struct.dtype]
        self.shape = tuple(struct.shape[:struct.dims])

    def numpy(self):
        """A read-only NumPy array. dtypes that NumPy has not (bfloat16) come as unsigned integers of their bits."""
        import numpy

        dtype = numpy.dtype(_types.WITHOUT_NUMPY.get(self.dtype, self.dtype))
        if self._bytes == 0:
            return numpy.empty(self.shape, dtype)
        memory = (ctypes.c_char * self._bytes).from_address(self._address)
        memory._keep = self._keep
        array = numpy.frombuffer(memory, dtype).reshape(self.shape)
        array.flags.writeable = False
        return array

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None and not copy else array.astype(dtype or array.dtype)

    def __dlpack__(self, stream=None, **_):
        return _memory.capsule(self._address, self.dtype, self.shape, self._keep)

    def __dlpack_device__(self):
        return _memory.DL_CPU, 0

    def torch(self):
        """A PyTorch CPU tensor of its own memory."""
        import torch

        dtype = getattr(torch, self.dtype)
        if self._bytes == 0:
            return torch.empty(self.shape, dtype=dtype)
        memory = (ctypes.c_char * self._bytes).from_address(self._address)
        return torch.frombuffer(bytearray(memory), dtype=dtype).reshape(self.shape)

    def _view(self):
        return _memory.View(self._address, self.dtype, self.shape, _memory.contiguous_strides(self.shape), self._keep)

    def item(self):
        return self.torch().item() if self.dtype in _types.WITHOUT_NUMPY else self.numpy().item()

    def __repr__(self):
        return f"Value({self.dtype}{list(self.shape)})"


class Future:
    """An answer that the daemon will send, or the first error that it depends on."""

    def __init__(self, handle, kind):
        self._object = handle
        self._kind = kind

    def done(self):
        """Whether wait() would return at once."""
        return LIBRARY.dtorch_poll(self._object.pointer) == 1

    def __await__(self):
        return self._arrival().__await__()

    async def _arrival(self):
        """The answer, for the running event loop, which goes on meanwhile."""
        if self.done():
            return self.wait(0)
        loop = asyncio.get_running_loop()
        event = LIBRARY.dtorch_event(self._object.pointer)
        if event < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        event = os.dup(event)  # a loop knows one reader of a descriptor, and others may wait, too
        arrived = loop.create_future()
        loop.add_reader(event, lambda: arrived.done() or arrived.set_result(None))
        try:
            await arrived
        finally:
            loop.remove_reader(event)
            os.close(event)
        return self.wait(0)

    def wait(self, timeout=None):
        """The answer. Raises TimeoutError after `timeout` seconds; the future stays good."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            piece = _WAIT_PIECE if deadline is None else min(_WAIT_PIECE, max(deadline - time.monotonic(), 0))
            code = LIBRARY.dtorch_wait(self._object.pointer, piece)
            if code == DEADLINE_EXCEEDED and not self.done():
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"the value did not arrive in {timeout} s")
                continue
            if code == DEADLINE_EXCEEDED:
                code = LIBRARY.dtorch_wait(self._object.pointer, 0)
            check(code)
            return self._kind(self._object)


def _value(future):
    struct, placements = HostTensor(), c_char_p()
    check(LIBRARY.dtorch_result(future.pointer, byref(struct), byref(placements)))
    return Value(future, struct)


def _info(future):
    struct, placements = HostTensor(), c_char_p()
    check(LIBRARY.dtorch_result(future.pointer, byref(struct), byref(placements)))
    dims = slice(struct.dims)
    return TensorInfo(tuple(struct.shape[dims]), tuple(struct.strides[dims]), _types.DTYPE_NAMES[struct.dtype],
                      [placement_of(text) for text in placements.value.decode().split()], _mesh_info(_json(future)))


def _mesh_info(wire):
    return MeshInfo(tuple(wire["ranks"]), tuple(map(int, wire["shape"])),
                    tuple(base64.b64decode(name).decode() for name in wire.get("names", ())))


def _json(future):
    text = c_char_p()
    check(LIBRARY.dtorch_json(future.pointer, byref(text)))
    return json.loads(text.value)


def _nothing(_):
    return None


class _Settings:
    """Of a session, and known to its tensors, which do not keep it alive."""

    __slots__ = ("time_limit", "sync", "_session")

    def __init__(self, session, sync):
        self.time_limit = 0.0  # of each call, in seconds: see Session.limited(); 0: none
        self.sync = sync
        self._session = weakref.ref(session)

    def settle(self):
        """Waits until what was called has run, where the session does so, and raises its error."""
        session = self._session() if self.sync else None
        if session is not None:
            session.synchronize().wait()


class Tensor(_types.TensorBase):
    """A distributed tensor. The daemon forgets it when the last reference is gone; nothing here waits but values."""

    __slots__ = ("_object", "_settings")

    def __init__(self, handle, settings):
        self._object = handle
        self._settings = settings

    def redistribute(self, placements):
        """The same value, placed otherwise on its mesh."""
        made = Tensor(Object.made_by(LIBRARY.dtorch_redistribute, self._object.pointer, _text(placements),
                                     self._settings.time_limit, _site()), self._settings)
        self._settings.settle()
        return made

    def get(self):
        """A Future of the whole Value."""
        return Future(Object.made_by(LIBRARY.dtorch_get, self._object.pointer, -1), _value)

    def get_local(self, rank):
        """A Future of the part that `rank` holds; of a Partial tensor, its summand."""
        if rank < 0:
            raise ValueError(f"rank {rank} is negative")
        return Future(Object.made_by(LIBRARY.dtorch_get, self._object.pointer, rank), _value)

    def describe(self):
        """A Future of its TensorInfo."""
        return Future(Object.made_by(LIBRARY.dtorch_describe, self._object.pointer), _info)

    def numpy(self, timeout=None):
        return self.get().wait(timeout).numpy()


class Session:
    """A connection to a dtorchd and the tensors made over it. Made by connect(). Thread: safe; calls of one thread keep
    their order."""

    @classmethod
    def connect(cls, address=None, timeout=5.0, name=None, sync=False, validate=False):
        """See the function connect()."""
        info = SessionInfo()
        program = sys.argv[0] if name is None else name
        return cls(Object.made_by(functools.partial(_connect, info), encoded(address or ""), timeout, encoded(program),
                                  sync, validate), info, sync)

    def __init__(self, handle, info, sync):
        self._object = handle
        self.implicit = False  # see implicit_redistribution()
        self._settings = _Settings(self, sync)
        self.id = info.id
        self.daemon_pid = info.daemon_pid
        self.world_size = info.world_size
        self.world = Mesh(Object.made_by(LIBRARY.dtorch_mesh, handle.pointer, None, 0, None, 0, None), self.id,
                          range(self.world_size), [self.world_size])

    def mesh(self, ranks, shape=None, names=None):
        """Some of the workers, in the given order and shape (default: one dimension), its dimensions named or not."""
        ranks = [int(rank) for rank in ranks]
        shape = [len(ranks)] if shape is None else [int(extent) for extent in shape]
        if names is not None and len(names) != len(shape):
            raise ValueError(f"{len(names)} names for {len(shape)} dimensions")
        texts = None if names is None else (c_char_p * len(names))(*(encoded(name) for name in names))
        made = Object.made_by(LIBRARY.dtorch_mesh, self._object.pointer, (c_int32 * len(ranks))(*ranks), len(ranks),
                              _memory.int64s(shape), len(shape), texts)
        return Mesh(made, self.id, ranks, shape, names)

    def submesh(self, mesh, **at):
        """The part of a mesh with these indices along some of its named dimensions, as a mesh of the others: of a mesh
        named "data" and "model", submesh(mesh, data=0) has the dimension "model" alone. IndexError, KeyError."""
        ranks, shape, names = list(mesh.ranks), list(mesh.shape), list(mesh.names)
        for name, index in at.items():
            if name not in names:
                raise KeyError(f"no dimension {name!r} in {mesh}")
            dim = names.index(name)
            if not 0 <= index < shape[dim]:
                raise IndexError(f"{name}={index} in {mesh}")
            inner = math.prod(shape[dim + 1:])
            ranks = [rank for i, rank in enumerate(ranks) if i // inner % shape[dim] == index]
            del shape[dim], names[dim]
        return self.mesh(ranks, shape or None, names or None)

    def put(self, value, placements=None, mesh=None):
        """A tensor of `value` (see _memory.view), which is copied before this returns. One placement for each mesh
        dimension; none: all Replicate."""
        view = _memory.view(value)
        made = Tensor(Object.made_by(LIBRARY.dtorch_put, self._object.pointer, self._mesh(mesh), _text(placements),
                                     byref(view.struct), self._settings.time_limit, _site()), self._settings)
        self._settings.settle()
        return made

    def put_shards(self, parts, shape, placements, mesh=None):
        """A tensor of global `shape` from what each rank shall hold, in mesh order; for Partial these are the
        summands."""
        views = [_memory.view(part) for part in parts]
        structs = (HostTensor * len(views))(*(view.struct for view in views))
        made = Tensor(Object.made_by(LIBRARY.dtorch_put_shards, self._object.pointer, self._mesh(mesh),
                                     _text(placements), structs, len(views), _memory.int64s(shape), len(shape),
                                     self._settings.time_limit, _site()), self._settings)
        self._settings.settle()
        return made

    def call(self, name, *arguments, outputs=1, mesh=None, placements=None, **named):
        """Calls an ATen operator by its schema name: a Tensor, or for another number of `outputs` a list of them.

        Arguments are tensors, numbers, texts, dtypes, lists of these, None; those left out take the schema's defaults.
        `mesh` and `placements` are for operators without tensor arguments.
        """
        encoder = Encoder()
        wire = encoder.arguments(arguments, named)
        tensors = encoder.tensors
        inputs = (c_void_p * len(tensors))(*(tensor._object.pointer for tensor in tensors))
        results = (c_void_p * outputs)()
        check(LIBRARY.dtorch_call(self._object.pointer, encoded(name), wire, len(wire), inputs, len(tensors),
                                  None if mesh is None else self._mesh(mesh), _text(placements), outputs,
                                  self.implicit, self._settings.time_limit, _site(), results))
        made = [Tensor(Object(pointer), self._settings) for pointer in results]
        self._settings.settle()
        return made[0] if outputs == 1 else made

    @contextlib.contextmanager
    def implicit_redistribution(self, implicit=True):
        """Within it, calls whose inputs no placement rule takes as they lie redistribute them, as cheaply as can be, where
        otherwise they are refused. For the whole session: `session.implicit = True`."""
        before, self.implicit = self.implicit, implicit
        try:
            yield
        finally:
            self.implicit = before

    @property
    def sync(self):
        """Whether each call waits until it has run: see connect()."""
        return self._settings.sync

    @property
    def time_limit(self):
        """Of each call, in seconds: see limited(). 0: none."""
        return self._settings.time_limit

    @contextlib.contextmanager
    def limited(self, seconds):
        """Within it, a call, a put or a redistribution fails with DeadlineExceeded, and so does all that depends on it, when it
        is not done so long after it arrived at the daemon. None, 0 or infinity: no limit. What is over already is over
        at once."""
        seconds = 0.0 if seconds is None else float(seconds)
        if math.isnan(seconds):
            raise ValueError("a time limit that is no number")
        before = self._settings.time_limit
        self._settings.time_limit = 0.0 if math.isinf(seconds) else (max(seconds, 1e-3) if seconds else 0.0)
        try:
            yield
        finally:
            self._settings.time_limit = before

    def cancel(self):
        """Cancels what was called so far and is not done: whoever waits for it gets Cancelled, its results have no value,
        nor have tensors that it was to write to. What runs is not waited for, what has not begun is dropped. Any thread."""
        check(LIBRARY.dtorch_cancel(self._object.pointer))

    def redistributions(self, timeout=None, forget=False):
        """What has been redistributed so far, asked for or not: a list of Redistribution. `forget`: the next list begins
        anew."""
        answer = Future(Object.made_by(LIBRARY.dtorch_redistributions, self._object.pointer, forget), _json).wait(timeout)
        return [Redistribution(each["redistribution"], each["operator_name"], each["site"], int(each["count"]), each["inner"])
                for each in answer.get("redistributions", ())]

    def explain(self, name, *arguments, outputs=1, timeout=None, **named):
        """How a call would be placed, without running it: an Explanation."""
        encoder = Encoder()
        wire = encoder.arguments(arguments, named)
        tensors = encoder.tensors
        inputs = (c_void_p * len(tensors))(*(tensor._object.pointer for tensor in tensors))
        future = Object.made_by(LIBRARY.dtorch_explain, self._object.pointer, encoded(name), wire, len(wire),
                                inputs, len(tensors), outputs, _site())
        return Explanation(Future(future, _json).wait(timeout))

    def declare_rule(self, name, rule, timeout=None):
        """A placement rule of an operator of an operator library, for this session: "b m k, k n -> b m n; k:sum" (see
        docs/rules.md)."""
        Future(Object.made_by(LIBRARY.dtorch_declare_rule, self._object.pointer, encoded(name), encoded(rule)),
               _nothing).wait(timeout)

    def verify_rule(self, name, *arguments, outputs=1, rtol=1e-5, atol=1e-6, timeout=None, **named):
        """Whether the placement rule of an operator is right for these arguments (NumPy arrays where it takes tensors):
        each of its rows is run on all workers and compared with the operator on whole tensors. A list with a RowResult a
        row; its `fault` is None where the row is right."""
        return verify_rule(self, name, arguments, named, outputs, rtol, atol, timeout)

    def operators(self, timeout=None):
        """The operators that have a placement rule: a list of (name with overload, whether it is pointwise)."""
        answer = Future(Object.made_by(LIBRARY.dtorch_rules, self._object.pointer), _json).wait(timeout)
        return [(each["name"], each["pointwise"]) for each in answer["operators"]]

    def manual_seed(self, seed, mesh=None):
        """Sets the random state of this session's operators on a mesh, as torch.manual_seed(): what they draw then is what
        PyTorch draws in one process, on every placement and any number of workers."""
        # Seeds have 64 bits, operators' integers a sign.
        seed = int(seed)
        self.call("dtorch::manual_seed", seed - (1 << 64) if 1 << 63 <= seed < 1 << 64 else seed, outputs=0, mesh=mesh)

    def get_rng_state(self, mesh=None):
        """A Tensor as torch.get_rng_state() gives."""
        return self.call("dtorch::get_rng_state", mesh=mesh)

    def set_rng_state(self, state):
        """`state`: a Tensor from get_rng_state(), or put from torch.get_rng_state()."""
        self.call("dtorch::set_rng_state", state, outputs=0)

    def memory_stats(self, mesh=None, timeout=None):
        """What the tensors of each worker hold when the operators called so far have run, temporaries of kernels
        included in the peaks: a dict for each rank of the mesh, in its order. `reserved` is with what is kept for later
        tensors."""
        rows = self.call("dtorch::memory_stats", mesh=mesh).numpy(timeout)
        return [dict(zip(_MEMORY_COLUMNS, map(int, row))) for row in rows]

    def reset_peak_memory(self, mesh=None):
        """The peaks become what is held then."""
        self.call("dtorch::reset_peak_memory", outputs=0, mesh=mesh)

    def empty_cache(self, mesh=None):
        """Memory that workers keep for later tensors goes back to the system."""
        self.call("dtorch::empty_cache", outputs=0, mesh=mesh)

    @contextlib.contextmanager
    def range(self, name, mesh=None):
        """A named range of operators; ranges nest. Workers log how long each took, at level debug."""
        self.range_push(name, mesh)
        try:
            yield
        finally:
            self.range_pop(mesh)

    def range_push(self, name, mesh=None):
        self.call("dtorch::range_push", name, outputs=0, mesh=mesh)

    def range_pop(self, mesh=None):
        self.call("dtorch::range_pop", outputs=0, mesh=mesh)

    def mark(self, name, mesh=None):
        """A named moment, in the log as ranges are."""
        self.call("dtorch::mark", name, outputs=0, mesh=mesh)

    def synchronize(self):
        """A Future that resolves when everything before it has run, with the first error that nobody was told of."""
        return Future(Object.made_by(LIBRARY.dtorch_synchronize, self._object.pointer), _nothing)

    def await_workers(self):
        """A Future that resolves when all workers are up. After the loss of one, tensors can be put and operators called
        on its meshes from then on. WorkerLost: one was lost too often, and none is started in its place."""
        return Future(Object.made_by(LIBRARY.dtorch_await_workers, self._object.pointer), _nothing)

    def close(self):
        """Sends what is left and ends the session; its tensors fail from now on."""
        self._object.__del__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _mesh(self, mesh):
        mesh = self.world if mesh is None else mesh
        if mesh._session != self.id:
            raise ValueError("the mesh belongs to another session")
        return mesh._object.pointer


def connect(address=None, timeout=5.0, name=None, sync=False, validate=False):
    """Connects to the dtorchd at `address` (a socket's path, or host:port); default: $DTORCH_SOCKET, or this user's
    daemon. `sync`: each call, put and redistribution waits until it has run, and raises its error; an in-place call that
    was refused has then changed nothing. `validate`: workers check what the kernels of this session read and write
    (docs/numerics.md). Both are for finding faults, not for speed."""
    return Session.connect(address, timeout, name, sync, validate)


def _connect(info, *arguments):
    return LIBRARY.dtorch_connect(*arguments, byref(info))
