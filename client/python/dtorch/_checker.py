"""Tensors against references, by tag."""
from ctypes import byref

from . import _memory, _types
from ._library import ComparisonInfo, LIBRARY, Object, check, encoded

DUMP_WHEN = {"unequal": 0, "first_unequal": 1, "all": 2}


class Comparison:
    """How a tensor differs from its reference; true when it does not.

    `problem`: why they were not compared by element (shape or dtype), else ""; `elements`, `mismatches`: how many;
    `first_mismatch`: its index, with the values `actual` and `expected`, or None; `greatest_difference` and the index
    `greatest_at`: infinite where only one is NaN or infinite.
    """

    def __init__(self, info):
        index = lambda pointer: tuple(pointer[:info.dims]) if info.dims else ()
        self._text = info.text.decode()
        self.problem = info.problem.decode()
        self.elements = info.elements
        self.mismatches = info.mismatches
        self.first_mismatch = index(info.first_mismatch) if info.mismatches else None
        self.actual = _number(info.actual) if info.mismatches else None
        self.expected = _number(info.expected) if info.mismatches else None
        self.greatest_difference = info.greatest_difference
        self.greatest_at = index(info.greatest_at) if info.greatest_difference else None

    def __bool__(self):
        return not self.problem and not self.mismatches

    def __repr__(self):
        return f"Comparison({self._text})"


def _number(text):
    for kind in int, float, complex:
        try:
            return kind(text.decode())
        except ValueError:
            pass
    return text.decode()


def _view(tensor):
    if isinstance(tensor, _types.TensorBase):
        tensor = tensor.get().wait()
    return tensor._view() if isinstance(tensor, _types.ValueBase) else _memory.view(tensor)


class TensorChecker:
    """Compares tensors with references by tag. Tensors are dtorch's, NumPy's, PyTorch's or nested lists.

    `references`: a folder of <tag>.npy; None: they are kept in memory. `record`: check() makes references instead of
    comparing with them: the first of two runs of the same program. `dumps`: a folder for <tag>.npy and
    <tag>.expected.npy of what was checked; `dump_when` "unequal", "first_unequal" or "all".
    """

    def __init__(self, references=None, record=False, dumps=None, dump_when="unequal"):
        self._object = Object.made_by(LIBRARY.dtorch_checker, encoded(references or ""), record, encoded(dumps or ""),
                                      DUMP_WHEN[dump_when])

    def record(self, tag, tensor):
        """Makes `tensor` the reference of `tag`."""
        view = _view(tensor)
        check(LIBRARY.dtorch_record(self._object.pointer, encoded(tag), byref(view.struct)))

    def check(self, tag, tensor, rtol=0.0, atol=0.0, equal_nan=False):
        """A Comparison with the reference of `tag`: equal, or close as numpy.allclose has it."""
        view = _view(tensor)
        info = ComparisonInfo()
        check(LIBRARY.dtorch_check(self._object.pointer, encoded(tag), byref(view.struct), rtol, atol, equal_nan,
                                   byref(info)))
        return Comparison(info)
