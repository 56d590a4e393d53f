"""The C API by ctypes: its structs, its functions, and exceptions for its statuses.

The library is looked for next to this file (in a wheel), in $SLUICE_LIBRARY, then by the loader.
"""
import ctypes
import os
import pathlib
import weakref
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p


class Error(RuntimeError):
    """A call failed; the message is the library's sentence."""
    status = None


class InputError(Error, ValueError):
    """An argument, a file or a tensor is wrong; nothing has changed."""


class Refused(Error):
    """No plan fits the budgets; the message has the smallest change that would. requested_bytes, available_bytes and
    tier (-1: none in particular) say what is missing."""
    requested_bytes = available_bytes = 0
    tier = -1


class OutOfMemory(Error, MemoryError):
    """A budget is full. requested_bytes, available_bytes and tier say more."""
    requested_bytes = available_bytes = 0
    tier = -1


class IOFault(Error, OSError):
    """A system call on a file failed."""


class IntegrityError(Error):
    """Bytes on storage are not those that were written."""


class Timeout(Error, TimeoutError):
    """A wait passed its deadline."""


class NotFinite(Error, ArithmeticError):
    """A gradient is not finite; the update was not made."""


class Poisoned(Error):
    """An earlier call failed halfway."""


EXCEPTIONS = {1: InputError, 2: Refused, 3: OutOfMemory, 4: IOFault, 5: IntegrityError, 6: Timeout,
              13: NotFinite, 14: Poisoned}
NONE = 0xFFFFFFFF
_INTEGERS = (c_int32, c_int64, c_uint32, c_uint64)


class Struct(ctypes.Structure):
    """A struct of the header, with struct_size set and all else zero but for the arguments."""

    def __init__(self, **members):
        super().__init__()
        for name, value in members.items():
            setattr(self, name, value)
        self.struct_size = ctypes.sizeof(self)

    def __setattr__(self, name, value):
        """Refuses an integer of which ctypes would keep the low bits alone."""
        kind = dict(self._fields_)[name]
        if kind in _INTEGERS and isinstance(value, int) and kind(value).value != value:
            raise InputError(f"{name} is {value}, which {8 * ctypes.sizeof(kind)} bits cannot hold")
        super().__setattr__(name, value)


class ErrorInfo(Struct):
    _fields_ = [("struct_size", c_uint32), ("status", c_int32), ("system_errno", c_int32), ("tier", c_int32),
                ("requested_bytes", c_uint64), ("available_bytes", c_uint64), ("message", c_char_p),
                ("subject", c_char_p)]


class EngineOptions(Struct):
    _fields_ = [("struct_size", c_uint32), ("device_type", c_int32), ("device_id", c_int32),
                ("storage_engine", c_int32), ("device_bytes", c_uint64), ("pinned_bytes", c_uint64),
                ("storage_bytes", c_uint64), ("storage_paths", POINTER(c_char_p)),
                ("storage_path_count", c_uint32), ("threads", c_int32), ("deadline_s", c_double),
                ("link_bandwidth_bytes_per_s", c_uint64)]


class Usage(Struct):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32), ("cap_bytes", c_uint64),
                ("live_bytes", c_uint64), ("peak_bytes", c_uint64), ("measured_peak_bytes", c_uint64),
                ("live_by_category", c_uint64 * 7)]


class AllocatorOptions(Struct):
    _fields_ = [("struct_size", c_uint32), ("planned", c_int32), ("recorded_events", c_uint64)]


class AllocatorStats(Struct):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32)] + [(name, c_uint64) for name in (
        "live_bytes", "peak_live_bytes", "reserved_bytes", "peak_reserved_bytes", "allocations", "frees",
        "planned_allocations", "remapped_pages", "arena_bytes", "fallback_allocations", "diverged_steps")]


class SessionOptions(Struct):
    _fields_ = [("struct_size", c_uint32), ("state", c_int32), ("commit_path", c_char_p)]


class Tensor(Struct):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int32), ("device_type", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("reserved", c_int32), ("data", c_void_p), ("shape", POINTER(c_int64))]


class GroupOptions(Struct):
    _fields_ = [("struct_size", c_uint32), ("rule", c_int32), ("moments", c_int32), ("split_master", c_int32),
                ("nesterov", c_int32), ("caller_moments", c_int32), ("lr", c_double), ("weight_decay", c_double),
                ("beta1", c_double), ("beta2", c_double), ("eps", c_double), ("momentum", c_double)]


class ParamOptions(Struct):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int32), ("ndim", c_int32), ("unit", c_uint32),
                ("group", c_uint32), ("reserved", c_uint32), ("name", c_char_p), ("shape", POINTER(c_int64)),
                ("data", c_void_p)]


class UpdateInfo(Struct):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32), ("max_norm", c_double),
                ("grad_scale", c_double), ("grad_norm", c_double)]


class SessionStats(Struct):
    _fields_ = [("struct_size", c_uint32), ("sealed", c_uint32), ("updates", c_uint64),
                ("planned_pinned_bytes", c_uint64), ("planned_storage_bytes", c_uint64), ("units", c_uint64),
                ("stored_units", c_uint64), ("storage_read_bytes", c_uint64), ("storage_write_bytes", c_uint64),
                ("update_ns", c_uint64)]


class PagerOptions(Struct):
    _fields_ = [("struct_size", c_uint32), ("weights", c_int32), ("state", c_int32), ("reserved", c_int32),
                ("window_bytes", c_uint64)]


class PagerStats(Struct):
    _fields_ = [("struct_size", c_uint32), ("sealed", c_uint32), ("window_bytes", c_uint64),
                ("pinned_bytes", c_uint64), ("storage_bytes", c_uint64), ("stored_weight_bytes", c_uint64),
                ("stored_state_bytes", c_uint64), ("uses", c_uint64), ("demand_fetches", c_uint64),
                ("prefetches", c_uint64), ("fetched_bytes", c_uint64), ("mapped_pages", c_uint64),
                ("plans", c_uint64), ("deviations", c_uint64), ("storage_read_bytes", c_uint64),
                ("storage_write_bytes", c_uint64), ("wait_ns", c_uint64)]


HANDLE = c_void_p
# The arguments of each function that Python calls; the result is a status.
FUNCTIONS = {
    "sluice_error": [POINTER(ErrorInfo)],
    "sluice_engine_create": [POINTER(EngineOptions), POINTER(HANDLE)],
    "sluice_engine_usage": [HANDLE, c_int32, POINTER(Usage)],
    "sluice_allocator_create": [HANDLE, POINTER(AllocatorOptions), POINTER(HANDLE)],
    "sluice_allocator_step": [HANDLE],
    "sluice_allocator_get_stats": [HANDLE, POINTER(AllocatorStats)],
    "sluice_torch_attach": [HANDLE],
    "sluice_session_create": [HANDLE, POINTER(SessionOptions), POINTER(HANDLE)],
    "sluice_session_add_group": [HANDLE, POINTER(GroupOptions), POINTER(c_uint32)],
    "sluice_session_set_group": [HANDLE, c_uint32, POINTER(GroupOptions)],
    "sluice_session_add_unit": [HANDLE, c_char_p, POINTER(c_uint32)],
    "sluice_session_add_param": [HANDLE, POINTER(ParamOptions), POINTER(c_uint32)],
    "sluice_session_seal": [HANDLE],
    "sluice_session_weight": [HANDLE, c_uint32, POINTER(Tensor)],
    "sluice_session_grad": [HANDLE, c_uint32, POINTER(Tensor)],
    "sluice_session_give_grad": [HANDLE, c_uint32, POINTER(Tensor)],
    "sluice_session_update": [HANDLE, POINTER(UpdateInfo)],
    "sluice_session_kind_dtype": [HANDLE, c_uint32, c_int32, POINTER(c_int32)],
    "sluice_session_read": [HANDLE, c_uint32, c_int32, c_uint64, c_uint64, c_void_p, c_uint64],
    "sluice_session_write": [HANDLE, c_uint32, c_int32, c_uint64, c_uint64, c_void_p, c_uint64],
    "sluice_session_save": [HANDLE, c_char_p],
    "sluice_session_load": [HANDLE, c_char_p],
    "sluice_session_commit": [HANDLE],
    "sluice_session_set_updates": [HANDLE, c_uint64],
    "sluice_plan": [c_char_p, POINTER(c_char_p)],
    "sluice_session_get_stats": [HANDLE, POINTER(SessionStats)],
    "sluice_pager_create": [HANDLE, POINTER(PagerOptions), POINTER(HANDLE)],
    "sluice_pager_add_unit": [HANDLE, c_char_p, POINTER(c_uint32)],
    "sluice_pager_add": [HANDLE, c_uint32, c_int32, c_uint64, c_void_p, POINTER(c_uint32)],
    "sluice_pager_seal": [HANDLE],
    "sluice_pager_window": [HANDLE, c_uint32, POINTER(c_void_p)],
    "sluice_pager_home": [HANDLE, c_uint32, POINTER(c_void_p)],
    "sluice_pager_staged": [HANDLE, c_uint32, POINTER(c_void_p)],
    "sluice_pager_begin_pass": [HANDLE],
    "sluice_pager_acquire": [HANDLE, c_uint32, c_void_p],
    "sluice_pager_release": [HANDLE, c_uint32, c_void_p],
    "sluice_pager_stage": [HANDLE, c_uint32, c_uint32],
    "sluice_pager_unstage": [HANDLE, c_uint32],
    "sluice_pager_settle": [HANDLE],
    "sluice_pager_read": [HANDLE, c_uint32, c_uint64, c_void_p, c_uint64],
    "sluice_pager_write": [HANDLE, c_uint32, c_uint64, c_void_p, c_uint64],
    "sluice_pager_get_stats": [HANDLE, POINTER(PagerStats)],
}
DESTROYS = ("sluice_engine_destroy", "sluice_allocator_destroy", "sluice_session_destroy", "sluice_pager_destroy")


def open_library():
    """libsluice.so.1 with the types of its functions: the wheel's, or the one that SLUICE_LIBRARY names."""
    own = pathlib.Path(__file__).with_name("lib") / "libsluice.so.1"
    library = ctypes.CDLL(str(own) if own.exists() else os.environ.get("SLUICE_LIBRARY", "libsluice.so.1"))
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int32
    for name in DESTROYS:
        function = getattr(library, name)
        function.argtypes, function.restype = [HANDLE], None
    library.sluice_version.restype = c_uint32
    return library


LIBRARY = open_library()


def last_error(status):
    """The exception for a failed call of this thread."""
    info = ErrorInfo()
    LIBRARY.sluice_error(byref(info))
    error = EXCEPTIONS.get(status, Error)((info.message or b"").decode(errors="replace"))
    error.status = status
    if isinstance(error, (OutOfMemory, Refused)):
        error.requested_bytes, error.available_bytes, error.tier = info.requested_bytes, info.available_bytes, info.tier
    return error


def call(name, *arguments):
    """Calls a function of the library; raises if it fails."""
    status = getattr(LIBRARY, name)(*arguments)
    if status != 0:
        raise last_error(status)


def number_of(table, word, name):
    try:
        return table[word]
    except KeyError:
        raise InputError(f"{name} is {word!r}; use one of {', '.join(table)}") from None


class Handle:
    """A handle of the library, destroyed with its object or by close()."""

    def __init__(self, handle, destroy):
        self._handle = handle
        self._finalizer = weakref.finalize(self, destroy, handle)

    def close(self):
        self._finalizer()
        self._handle = None
