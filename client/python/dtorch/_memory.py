"""Host memory of tensors: NumPy arrays and DLPack capsules, in and out, without a copy of ours."""
import ctypes
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p

from . import _types
from ._library import HostTensor

# DLPack 0.8, dlpack.h.
DL_CPU = 1
DL_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
DL_NAMES = {("bfloat", 16): "bfloat16", ("bool", 8): "bool"}
DL_FLOAT8 = {10: "float8_e4m3fn", 11: "float8_e4m3fnuz", 12: "float8_e5m2", 13: "float8_e5m2fnuz"}  # DLPack 1.1


class DLDevice(ctypes.Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device", DLDevice), ("ndim", c_int32), ("dtype", DLDataType),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class DLManagedTensor(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, POINTER(DLManagedTensor))
DLManagedTensor._fields_ = [("dl_tensor", DLTensor), ("manager_ctx", c_void_p), ("deleter", DELETER)]

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [c_void_p, ctypes.c_char_p, c_void_p]
_api.PyCapsule_GetPointer.restype = c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
CAPSULE = b"dltensor"


def int64s(values):
    return (c_int64 * len(values))(*values)


class View:
    """Host memory as the library takes it. `keep` is what must live as long."""

    def __init__(self, data, dtype, shape, strides, keep):
        self.shape = tuple(shape)
        reach = 0 if 0 in self.shape else 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        self.keep = keep, int64s(shape), int64s(strides)
        self.struct = HostTensor(data, reach * _types.ELEMENT_SIZES[dtype], _types.DTYPES[dtype], len(self.shape),
                                 self.keep[1], self.keep[2])


def view(value):
    """Anything with memory on this host: a NumPy array or scalar, a CPU tensor of PyTorch's or any other DLPack
    exporter's, a number, or nested lists of numbers."""
    if hasattr(value, "__dlpack__") and type(value).__module__.split(".")[0] != "numpy":
        return view_of_capsule(value)
    import numpy

    array = numpy.asarray(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    dtype = _types.dtype_name(array.dtype)
    if dtype is None:
        raise TypeError(f"NumPy's {array.dtype} is no dtype of a tensor")
    size = array.itemsize
    if any(stride < 0 or stride % size for stride in array.strides):
        array = numpy.ascontiguousarray(array)
    return View(array.ctypes.data, dtype, array.shape, [stride // size for stride in array.strides], array)


def view_of_capsule(value):
    for resolve in ("detach", "resolve_conj", "resolve_neg"):  # PyTorch exports what lies in memory, not what is meant
        value = getattr(value, resolve)() if hasattr(value, resolve) else value
    device_type, _ = value.__dlpack_device__()
    if device_type != DL_CPU:
        raise TypeError(f"the memory is on a device of DLPack type {device_type}, not on this host")
    capsule = value.__dlpack__()
    managed = ctypes.cast(_api.PyCapsule_GetPointer(capsule, CAPSULE), POINTER(DLManagedTensor)).contents
    tensor = managed.dl_tensor
    code, bits = DL_CODES.get(tensor.dtype.code, "?"), tensor.dtype.bits
    dtype = DL_FLOAT8.get(tensor.dtype.code) or DL_NAMES.get((code, bits), f"{code}{bits}")
    if dtype not in _types.DTYPES or tensor.dtype.lanes != 1:
        raise TypeError(f"DLPack's {code}{bits} is no dtype of a tensor")
    shape = tensor.shape[:tensor.ndim]
    strides = tensor.strides[:tensor.ndim] if tensor.strides else contiguous_strides(shape)
    # The capsule frees the memory with its own end: it is never marked as used.
    return View((tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, (capsule, value))


def contiguous_strides(shape):
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return strides[::-1]


_exported = {}  # address of each DLManagedTensor that is out: what must live as long


@DELETER
def _release(managed):
    _exported.pop(ctypes.addressof(managed.contents), None)


# For a capsule that is going: a py_object would bring it back to life.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_get_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


@ctypes.PYFUNCTYPE(None, c_void_p)
def _capsule_ends(address):
    if _is_valid(address, CAPSULE):  # nobody has taken it
        _exported.pop(_get_pointer(address, CAPSULE), None)


def capsule(address, dtype, shape, keep):
    """A DLPack capsule of contiguous host memory; `keep` lives as long as whoever takes it."""
    codes = {name: code for code, name in DL_FLOAT8.items()} | {"bfloat16": 4}
    code = codes.get(dtype, {"f": 2, "i": 0, "u": 1, "c": 5, "b": 6}[dtype[0]])
    managed = DLManagedTensor()
    extents, strides = int64s(shape), int64s(contiguous_strides(shape))
    managed.dl_tensor = DLTensor(address, DLDevice(DL_CPU, 0), len(shape),
                                 DLDataType(code, 8 * _types.ELEMENT_SIZES[dtype], 1), extents, strides, 0)
    managed.deleter = _release
    _exported[ctypes.addressof(managed)] = managed, extents, strides, keep
    return _api.PyCapsule_New(ctypes.addressof(managed), CAPSULE, ctypes.cast(_capsule_ends, c_void_p))
