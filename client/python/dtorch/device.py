"""The PyTorch device `dtorch`: tensors whose values lie on the workers of a daemon.

    import torch, dtorch

    dtorch.start(workers=2)
    x = torch.randn(3, 4, device="dtorch")
    print((x @ x.T).cpu())

Operators run on the workers; only values wait. New tensors lie on the default mesh (see dtorch.DeviceMesh), replicated;
dtorch.distribute_tensor() and Tensor.redistribute() place them otherwise.
"""
import contextlib
import ctypes
import os
import sys
import types

import torch

from . import _library, client
from ._daemon import OwnDaemon

torch.ops.load_library(_library.folder() / "libdtorch_torch.so")
_OPERATORS = torch.ops.dtorch_device
# Errors and dtorchctl name the program's line, not one of these.
for _package in torch, sys.modules[__package__]:
    _OPERATORS.pass_over_frames_of(os.path.dirname(_package.__file__) + os.sep)


class _Module(types.ModuleType):
    """torch.dtorch: what PyTorch asks of a device's module."""

    _initialized = True

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def is_initialized():
        return True

    @staticmethod
    def device_count():
        return 1

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def set_device(device):
        pass

    @staticmethod
    def synchronize(device=None):
        _OPERATORS.synchronize()

    @staticmethod
    def memory_stats(device=None):
        """Of each worker: see Session.memory_stats()."""
        return session().memory_stats()

    @staticmethod
    def memory_allocated(device=None):
        """Bytes that the tensors of all workers hold."""
        return sum(stats["allocated_bytes"] for stats in session().memory_stats())

    @staticmethod
    def max_memory_allocated(device=None):
        """The sum of the workers' peaks."""
        return sum(stats["peak_allocated_bytes"] for stats in session().memory_stats())

    @staticmethod
    def reset_peak_memory_stats(device=None):
        session().reset_peak_memory()

    @staticmethod
    def empty_cache():
        session().empty_cache()

    @staticmethod
    def _is_in_bad_fork():
        return _session is not None and os.getpid() != _pid

    @staticmethod
    def manual_seed(seed):
        _seed(seed)

    @staticmethod
    def get_rng_state(device=None):
        """A tensor on this device: no worker is waited for."""
        return _OPERATORS.get_rng_state()

    @staticmethod
    def set_rng_state(state, device=None):
        """`state`: from get_rng_state(), here or on the CPU."""
        _OPERATORS.set_rng_state(state)

    @staticmethod
    @contextlib.contextmanager
    def device(device):
        """There is one."""
        yield

    @staticmethod
    def manual_seed_all(seed):
        """Called by torch.manual_seed(), too."""
        if _session is not None:
            _seed(seed)

    @staticmethod
    def get_amp_supported_dtype():
        return [torch.bfloat16, torch.float16]


torch.utils.rename_privateuse1_backend("dtorch")
torch._register_device_module("dtorch", _Module("torch.dtorch"))
torch.set_autocast_dtype("dtorch", torch.bfloat16)
# Where a view is written to, autograd repeats what made it: of a tensor in parts no other view can be made.
torch._C._set_view_replay_enabled(True)
torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_packed_sequence=True,
                                                     for_storage=False)


_storage_of = torch.Tensor.untyped_storage
_stand_ins = torch.utils.weak.WeakIdKeyDictionary()


def _untyped_storage(tensor):
    """Tensors here have no storage. torch.compile looks at storages to tell which tensors share memory: it sees one of the
    device meta, a view that of its base."""
    if tensor.device.type != "dtorch" or isinstance(tensor, torch._subclasses.FakeTensor):
        return _storage_of(tensor)
    base = tensor if tensor._base is None else tensor._base
    if base not in _stand_ins:
        reach = 1 + sum((extent - 1) * stride for extent, stride in zip(base.shape, base.stride())) if base.numel() else 0
        _stand_ins[base] = torch.UntypedStorage(reach * base.element_size(), device="meta")
    return _stand_ins[base]


torch.Tensor.untyped_storage = _untyped_storage

_register_hook_of = torch.Tensor.register_hook


def _register_hook(tensor, hook):
    """The first hook of a tensor clears those that there are, among them what places a leaf's gradient."""
    handle = _register_hook_of(tensor, hook)
    if tensor.device.type == "dtorch" and not isinstance(tensor, torch._subclasses.FakeTensor):
        _OPERATORS.place_gradient(tensor)
    return handle


torch.Tensor.register_hook = _register_hook


class Session(client.Session):
    """The session that the device `dtorch` stands for. Used with `with`, it ends with the block."""

    _daemon = None
    seed = 0  # of random numbers

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.meshes = {}  # by their ranks: others than all workers have a random state of their own

    def seeded(self, mesh):
        """A mesh that is used from now on: what is drawn there is as everywhere."""
        if sorted(mesh.ranks) != list(range(self.world_size)) and mesh.ranks not in self.meshes:
            self.meshes[mesh.ranks] = mesh
            self.manual_seed(self.seed, mesh)
        return mesh

    def close(self):
        """Ends the session, and the daemon that start() has started for it; its tensors have no values any more."""
        global _session
        if _session is self:
            _session = None
            _OPERATORS.use_session(0)
            _OPERATORS.use_time_limit(0.0)
        super().close()
        if self._daemon is not None:
            self._daemon.stop()

    @contextlib.contextmanager
    def limited(self, seconds):
        """As client.Session.limited(), for operators on tensors of the device, too."""
        try:
            with super().limited(seconds):
                self._limit_device()
                yield
        finally:
            self._limit_device()

    def _limit_device(self):
        if _session is self:
            _OPERATORS.use_time_limit(self.time_limit)

    def _repr_html_(self):
        """For notebooks: its workers, and what their tensors hold."""
        rows = "".join(f"<tr><td>{rank}</td><td>{stats['allocated_bytes'] / 2 ** 20:.1f} MiB</td></tr>"
                       for rank, stats in enumerate(self.memory_stats()))
        return f"<div><b>{self!r}</b><table><tr><th>worker</th><th>tensors</th></tr>{rows}</table></div>"

    def __repr__(self):
        own = ", a daemon of its own" if self._daemon is not None else ""
        return f"Session({self.id} of the dtorchd with pid {self.daemon_pid}, {self.world_size} workers{own})"


_session = None
_pid = 0  # of the process that it belongs to: a forked child cannot use what is its parent's


def session():
    """The session that the device stands for now. RuntimeError: none."""
    if _session is None:
        raise RuntimeError("the device dtorch has no session: call dtorch.start() or dtorch.connect() first")
    return _session


def connect(address=None, timeout=5.0, name=None):
    """Makes a daemon's workers the device of this process, in place of those before: a Session. `address`, `timeout` (in
    seconds) and `name`: as dtorch.client.connect() takes them."""
    global _session, _pid
    from . import tensor  # noqa: F401: what torch.Tensor has more on this device
    made = Session.connect(address, timeout, name or os.path.basename(sys.argv[0] or "python"))
    disconnect()
    _session, _pid = made, os.getpid()
    _OPERATORS.use_session(made._object.pointer)
    _seed(torch.initial_seed())
    return made


def start(workers=2, timeout=60.0, **flags):
    """Starts a dtorchd for this program and makes its workers the device: a Session. The daemon ends with the session, and
    with this process. `flags`: more of dtorchd's, with "_" for the first ".": start(4, workers_threads=2). RuntimeError:
    it did not come up in `timeout` seconds."""
    daemon = OwnDaemon({"workers_count": workers, **flags}, timeout)
    with contextlib.ExitStack() as undo:
        undo.callback(daemon.stop)
        made = connect(daemon.address, timeout)
        undo.callback(made.close)
        made.await_workers().wait(timeout)
        made._daemon = daemon
        undo.pop_all()
    return made


def disconnect():
    """Ends the session, if there is one."""
    if _session is not None:
        _session.close()


def _seed(seed):
    seed = ctypes.c_int64(seed).value  # seeds have 64 bits, operators' integers a sign
    _OPERATORS.manual_seed(seed)
    for mesh in session().meshes.values():
        session().manual_seed(seed, mesh)
    session().seed = seed
