"""Arguments of a call as dtorch.v1.Arguments: Protobuf's encoding, written out for the few messages that a call needs."""
import struct

from . import _types


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number):
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def field(number, kind):
    return varint(number << 3 | kind)


def message(number, payload):
    return field(number, 2) + varint(len(payload)) + payload


# Field numbers of dtorch.v1.Value.
NONE = field(1, 0) + b"\1"
BOOLEAN = field(2, 0)
INTEGER = field(3, 0)
REAL = field(4, 1)
TENSOR = field(11, 0)
FALSE, TRUE = BOOLEAN + b"\0", BOOLEAN + b"\1"
INT64 = range(-(1 << 63), 1 << 63)


class Encoder:
    """Encodes the arguments of one call; `tensors` are those that it names, in the order of their positions."""

    def __init__(self):
        self.tensors = []

    def arguments(self, positional, named):
        parts = [message(1, self.value(argument)) for argument in positional]
        for name, argument in named.items():
            parts.append(message(2, message(1, name.encode()) + message(2, self.value(argument))))
        return b"".join(parts)

    def position(self, tensor):
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def value(self, argument):
        if argument is None:
            return NONE
        if argument is True:
            return TRUE
        if argument is False:
            return FALSE
        kind = type(argument)
        if kind is int:
            return self.integer(argument)
        if kind is float:
            return REAL + struct.pack("<d", argument)
        if isinstance(argument, _types.TensorBase):
            return TENSOR + varint(self.position(argument))
        if kind is str:
            return message(6, argument.encode())
        if kind is complex:
            parts = struct.pack("<d", argument.real), struct.pack("<d", argument.imag)
            return message(5, field(1, 1) + parts[0] + field(2, 1) + parts[1])
        if isinstance(argument, (list, tuple)):
            return self.sequence(argument)
        if isinstance(argument, _types.Device):
            return message(8, argument.name.encode())
        return self.other(argument)

    @staticmethod
    def integer(number):
        if number not in INT64:
            raise OverflowError(f"{number} does not fit into 64 bits")
        return INTEGER + zigzag(number)

    def sequence(self, items):
        kinds = {type(item) for item in items}
        if kinds <= {bool} and items:
            return message(15, message(1, bytes(items)))
        if kinds <= {int}:
            for item in items:
                self.integer(item)
            return message(13, message(1, b"".join(zigzag(item) for item in items)))
        if kinds <= {float}:  # among others an integer stays one: a list of numbers need not be of floats
            return message(14, message(1, b"".join(struct.pack("<d", item) for item in items)))
        if all(item is None or isinstance(item, _types.TensorBase) for item in items):
            indices = [0 if item is None else self.position(item) + 1 for item in items]
            return message(12, message(1, b"".join(varint(index) for index in indices)))
        return message(16, b"".join(message(1, self.value(item)) for item in items))

    def other(self, argument):
        """Types of NumPy's and PyTorch's, known by their names: neither need be there."""
        dtype = _types.dtype_name(argument)
        if dtype is not None:
            return field(7, 0) + varint(_types.DTYPES[dtype])
        text = str(argument)
        if type(argument).__module__.split(".")[0] == "torch":
            if type(argument).__name__ == "device":
                return message(8, text.encode())
            if text in _types.MEMORY_FORMATS:
                return field(10, 0) + varint(_types.MEMORY_FORMATS[text])
            if text == "torch.strided":
                return field(9, 0) + varint(1)
            if type(argument).__name__ == "Size":
                return self.sequence(tuple(argument))
        if hasattr(argument, "item") and getattr(argument, "ndim", None) == 0:
            return self.value(argument.item())  # a NumPy scalar
        raise TypeError(f"an argument of type {type(argument).__qualname__} ({text:.100}) cannot be sent")
