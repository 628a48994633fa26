"""The PyTorch device `dtorch`: tensors whose values lie on the workers of a daemon.

    import torch, dtorch.device
    dtorch.device.connect()
    x = torch.randn(3, 4, device="dtorch")
    print((x @ x.T).cpu())

Operators run on the workers; only values wait. Tensors that are made from nothing lie on all workers, replicated; see
distribute() and redistribute() for others.
"""
import ctypes
import os
import sys
import types

import torch

from . import _library
from ._placement import text_of

torch.ops.load_library(_library.folder() / "libdtorch_torch.so")
_OPERATORS = torch.ops.dtorch_device
# Errors and dtorchctl name the program's line, not one of these.
for _package in torch, sys.modules[__package__]:
    _OPERATORS.pass_over_frames_of(os.path.dirname(_package.__file__) + os.sep)


class _Module(types.ModuleType):
    """torch.dtorch: what PyTorch asks of a device's module."""

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
    def _is_in_bad_fork():
        return False

    @staticmethod
    def manual_seed_all(seed):
        """Called by torch.manual_seed(), too."""
        if _connected:
            _seed(seed)

    @staticmethod
    def get_amp_supported_dtype():
        return [torch.bfloat16, torch.float16]


torch.utils.rename_privateuse1_backend("dtorch")
torch._register_device_module("dtorch", _Module("torch.dtorch"))
torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_packed_sequence=True,
                                                     for_storage=False)


_connected = False


def _seed(seed):
    _OPERATORS.manual_seed(ctypes.c_int64(seed).value)  # seeds have 64 bits, operators' integers a sign


def connect(address=None, timeout=5.0, name=None):
    """Makes a daemon's workers the device of this process: how many there are. `address`: as of dtorch.connect()."""
    global _connected
    workers = _OPERATORS.connect(address or "", timeout,
                                 name or os.path.basename(sys.argv[0] or "python"))
    _connected = True
    _seed(torch.initial_seed())
    return workers


def disconnect():
    """Ends the session; its tensors have no values any more."""
    global _connected
    _connected = False
    _OPERATORS.disconnect()


def distribute(tensor, placements, ranks=(), shape=()):
    """A host tensor's value on the workers, one placement for each mesh dimension."""
    return _OPERATORS.distribute(tensor, list(ranks), list(shape), text_of(placements))


def redistribute(tensor, placements):
    """The same value, placed otherwise on its mesh. Not differentiable yet."""
    return _OPERATORS.redistribute(tensor, text_of(placements))


def placements(tensor):
    return _OPERATORS.placements(tensor)


def local_part(tensor, rank):
    """What `rank` holds, on the host."""
    return _OPERATORS.local_part(tensor, rank)
