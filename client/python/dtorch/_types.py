"""Names that NumPy, PyTorch and the wire give the same things."""

# dtorch.v1.DType
DTYPES = {
    "bool": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "uint32": 6, "int32": 7, "uint64": 8, "int64": 9,
    "float16": 10, "bfloat16": 11, "float32": 12, "float64": 13, "complex32": 14, "complex64": 15, "complex128": 16,
    "float8_e4m3fn": 17, "float8_e5m2": 18, "float8_e4m3fnuz": 19, "float8_e5m2fnuz": 20,
}
DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
ELEMENT_SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}
# NumPy has no such elements: their bits come as unsigned integers.
WITHOUT_NUMPY = {"bfloat16": "uint16", "complex32": "uint32", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8",
                 "float8_e4m3fnuz": "uint8", "float8_e5m2fnuz": "uint8"}
MEMORY_FORMATS = {"torch.contiguous_format": 1, "torch.preserve_format": 2, "torch.channels_last": 3,
                  "torch.channels_last_3d": 4}


class TensorBase:
    """What an argument is tested for."""

    __slots__ = ()


class ValueBase:
    """Host memory of ours."""

    __slots__ = ()


class Device:
    """A device argument of an operator: "cpu". Workers put their own in its place."""

    def __init__(self, name):
        self.name = name


class DType:
    """An element type, for those who have neither NumPy's nor PyTorch's at hand: dtorch.DType("bfloat16")."""

    def __init__(self, name):
        if name not in DTYPES:
            raise ValueError(f"{name!r} is no dtype; there are {', '.join(DTYPES)}")
        self.name = name

    def __repr__(self):
        return f"dtorch.DType({self.name!r})"


def dtype_name(dtype):
    """ "float32" for dtorch's, PyTorch's and NumPy's float32; None if it is no dtype."""
    if isinstance(dtype, DType):
        return dtype.name
    name = str(dtype)
    if type(dtype).__module__.split(".")[0] == "torch" and type(dtype).__name__ == "dtype":
        name = TORCH_NAMES.get(name.removeprefix("torch."), name.removeprefix("torch."))
    elif isinstance(dtype, type):
        name = dtype.__name__ if dtype.__module__ == "numpy" else None
    elif type(dtype).__module__.split(".")[0] != "numpy":
        name = None
    return name if name in DTYPES else None


TORCH_NAMES = {"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32",
               "short": "int16", "cfloat": "complex64", "cdouble": "complex128", "chalf": "complex32"}
