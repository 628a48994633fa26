"""The C++ client, through client/python/binding.h."""
import ctypes
import os
import pathlib
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p

NAME = "libdtorch_python.so"


class ErrorInfo(ctypes.Structure):
    _fields_ = [("message", c_char_p), ("operator_name", c_char_p), ("site", c_char_p), ("rank", c_int32)]


class Site(ctypes.Structure):
    _fields_ = [("file", c_char_p), ("line", c_uint32)]


class HostTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_uint64), ("dtype", c_int32), ("dims", c_int32),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64))]


class SessionInfo(ctypes.Structure):
    _fields_ = [("id", c_uint64), ("daemon_pid", c_int64), ("world_size", c_int32)]


class ComparisonInfo(ctypes.Structure):
    _fields_ = [("text", c_char_p), ("problem", c_char_p), ("actual", c_char_p), ("expected", c_char_p),
                ("first_mismatch", POINTER(c_int64)), ("greatest_at", POINTER(c_int64)), ("dims", c_int32),
                ("elements", c_int64), ("mismatches", c_int64), ("greatest_difference", c_double)]


OBJECT = c_void_p
OUT = POINTER(c_void_p)
FUNCTIONS = {
    "dtorch_connect": [c_char_p, c_double, c_char_p, c_int, c_int, OUT, POINTER(SessionInfo)],
    "dtorch_mesh": [OBJECT, POINTER(c_int32), c_int32, POINTER(c_int64), c_int32, POINTER(c_char_p), OUT],
    "dtorch_put": [OBJECT, OBJECT, c_char_p, POINTER(HostTensor), c_double, Site, OUT],
    "dtorch_put_shards": [OBJECT, OBJECT, c_char_p, POINTER(HostTensor), c_int32, POINTER(c_int64), c_int32, c_double,
                          Site, OUT],
    "dtorch_call": [OBJECT, c_char_p, c_char_p, c_uint64, POINTER(OBJECT), c_int32, OBJECT, c_char_p, c_uint32, c_int,
                    c_double, Site, POINTER(OBJECT)],
    "dtorch_explain": [OBJECT, c_char_p, c_char_p, c_uint64, POINTER(OBJECT), c_int32, c_uint32, Site, OUT],
    "dtorch_rules": [OBJECT, OUT],
    "dtorch_declare_rule": [OBJECT, c_char_p, c_char_p, OUT],
    "dtorch_redistributions": [OBJECT, c_int, OUT],
    "dtorch_redistribute": [OBJECT, c_char_p, c_double, Site, OUT],
    "dtorch_get": [OBJECT, c_int32, OUT],
    "dtorch_describe": [OBJECT, OUT],
    "dtorch_synchronize": [OBJECT, OUT],
    "dtorch_await_workers": [OBJECT, OUT],
    "dtorch_cancel": [OBJECT],
    "dtorch_wait": [OBJECT, c_double],
    "dtorch_event": [OBJECT],
    "dtorch_poll": [OBJECT],
    "dtorch_result": [OBJECT, POINTER(HostTensor), POINTER(c_char_p)],
    "dtorch_json": [OBJECT, POINTER(c_char_p)],
    "dtorch_checker": [c_char_p, c_int, c_char_p, c_int, OUT],
    "dtorch_record": [OBJECT, c_char_p, POINTER(HostTensor)],
    "dtorch_check": [OBJECT, c_char_p, POINTER(HostTensor), c_double, c_double, c_int, POINTER(ComparisonInfo)],
}


def folder():
    """Of the libraries of this package."""
    return pathlib.Path(os.environ.get("DTORCH_LIBRARY_PATH", pathlib.Path(__file__).parent))


def load():
    library = ctypes.CDLL(str(folder() / NAME))
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_int
    library.dtorch_error.argtypes = []
    library.dtorch_error.restype = ErrorInfo
    library.dtorch_free.argtypes = [OBJECT]
    library.dtorch_free.restype = None
    return library


LIBRARY = load()
DEADLINE_EXCEEDED = 4


class Error(RuntimeError):
    """What the daemon, a worker or the connection had to say against a call; its class tells what can be done
    (docs/operations.md).

    `code` is gRPC's name of its kind ("INVALID_ARGUMENT"); `operator`, `rank` and `site` tell which operator failed
    first, where, and the line that called it; None where there is none.
    """

    def __init__(self, code, message, operator=None, rank=None, site=None):
        super().__init__(f"{CODES.get(code, code)}: {message}")
        self.code = CODES.get(code, str(code))
        self.operator = operator
        self.rank = rank
        self.site = site


CODES = {1: "CANCELLED", 2: "UNKNOWN", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND",
         6: "ALREADY_EXISTS", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED", 9: "FAILED_PRECONDITION", 10: "ABORTED",
         11: "OUT_OF_RANGE", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE", 15: "DATA_LOSS",
         16: "UNAUTHENTICATED"}


class OperatorFailed(Error):
    """A call was refused, or its kernel failed: `operator` names it. The program has to change."""


class WorkerLost(Error):
    """A worker ended while the operator was in flight: wait (Session.await_workers), put the tensors anew, go on."""


class TensorLost(Error):
    """The tensor had a part on a worker that was lost since: put it anew."""


class DeadlineExceeded(Error):
    """It took longer than it was given."""


class Cancelled(Error):
    """Somebody did not want it any more."""


class OverQuota(Error):
    """A limit was reached; the message names it, and its configuration key."""


class Unavailable(Error):
    """The daemon is not there, is ending, or has ended the session: connect again."""


KINDS = {1: Cancelled, 4: DeadlineExceeded, 8: OverQuota, 10: WorkerLost, 14: Unavailable, 15: TensorLost}


def encoded(text):
    """A text or path as C takes it. ValueError: it would end before its end."""
    code = os.fsencode(text)
    if b"\0" in code:
        raise ValueError(f"{text!r} has a NUL character")
    return code


def check(code):
    if code:
        info = LIBRARY.dtorch_error()
        kind = KINDS.get(code, OperatorFailed if info.operator_name else Error)
        raise kind(code, info.message.decode(errors="replace"), info.operator_name.decode(errors="replace") or None,
                   None if info.rank < 0 else info.rank, info.site.decode(errors="replace") or None)


class Object:
    """Owns one object of the library's."""

    __slots__ = ("pointer", "__weakref__")

    def __init__(self, pointer):
        self.pointer = pointer

    @classmethod
    def made_by(cls, function, *arguments):
        """What `function` puts out behind its arguments."""
        out = c_void_p()
        check(function(*arguments, byref(out)))
        return cls(out.value)

    def __del__(self, free=LIBRARY.dtorch_free):
        if self.pointer:
            free(self.pointer)
            self.pointer = None
