"""Sluice: gradients and optimizer state of a model in pinned memory or on NVMe, by exact plans.

This module needs Python's standard library alone. `sluice.optim` has an optimizer for PyTorch, and
`sluice.offload` makes a PyTorch model and its optimizer train in less device memory.
"""
import ctypes
import os

from . import _library
from ._library import (Error, Handle, InputError, IntegrityError, IOFault, NotFinite, OutOfMemory, Poisoned, Refused,
                       Timeout, number_of)
from ._plan import plan

__all__ = ["Engine", "Error", "IOFault", "InputError", "IntegrityError", "NotFinite", "OutOfMemory", "Poisoned",
           "Refused", "Session", "Timeout", "plan", "version"]

TIERS = {"device": 0, "pinned": 1, "storage": 2}
PLACES = {"auto": 0, "pinned": 1, "storage": 2, "nvme": 2}
DTYPES = {"fp32": 1, "bf16": 2, "fp16": 3, "i16": 6, "8bit": 9}
DTYPE_BYTES = {1: 4, 2: 2, 3: 2, 6: 2, 9: 1}
RULES = {"adamw": 0, "adam": 1, "sgd": 2, "lion": 3}
KINDS = {"weight": 0, "gradient": 1, "master": 2, "moment1": 3, "moment2": 4, "moment1_scale": 5, "moment2_scale": 6}


_OF_TORCH = ("offload", "restore", "status")


def __getattr__(name):
    # These need PyTorch, so they are imported when somebody uses them.
    if name in _OF_TORCH:
        from . import _offload
        return getattr(_offload, name)
    if name == "Allocator":
        from ._allocator import Allocator
        return Allocator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_OF_TORCH})


def version():
    """The version of the loaded library: "0.2.0"."""
    number = _library.LIBRARY.sluice_version()
    return f"{number >> 16}.{number >> 8 & 255}.{number & 255}"


__version__ = version()


class Engine(Handle):
    """A device, the tiers below it, and their budgets in bytes; 0 is nine tenths of the free bytes.

    device: "cpu" or "cuda:N". storage: directories for state; none means no storage tier.
    """

    def __init__(self, device="cpu", *, device_bytes=0, pinned_bytes=0, storage_bytes=0, storage=(), threads=0):
        kind, _, number = device.partition(":")
        paths = [storage] if isinstance(storage, (str, os.PathLike)) else list(storage)
        texts = (ctypes.c_char_p * len(paths))(*[os.fsencode(path) for path in paths])
        options = _library.EngineOptions(
            device_type=number_of({"cpu": 1, "cuda": 2}, kind, "device"), device_id=int(number or 0),
            device_bytes=device_bytes, pinned_bytes=pinned_bytes, storage_bytes=storage_bytes, storage_paths=texts,
            storage_path_count=len(paths), threads=threads)
        handle = ctypes.c_void_p()
        _library.call("sluice_engine_create", ctypes.byref(options), ctypes.byref(handle))
        super().__init__(handle, _library.LIBRARY.sluice_engine_destroy)

    def usage(self, tier):
        """Bytes of a tier: {"cap": …, "live": …, "peak": …}."""
        usage = _library.Usage()
        _library.call("sluice_engine_usage", self._handle, number_of(TIERS, tier, "tier"), ctypes.byref(usage))
        return {"cap": usage.cap_bytes, "live": usage.live_bytes, "peak": usage.peak_bytes}


class Session(Handle):
    """Parameters with their gradients and optimizer state; see sluice.h for the order of calls.

    commit_path: a directory for commit().
    """

    def __init__(self, engine, *, state="auto", commit_path=None):
        options = _library.SessionOptions(state=number_of(PLACES, state, "state"),
                                          commit_path=None if commit_path is None else os.fsencode(commit_path))
        handle = ctypes.c_void_p()
        _library.call("sluice_session_create", engine._handle, ctypes.byref(options), ctypes.byref(handle))
        super().__init__(handle, _library.LIBRARY.sluice_session_destroy)

    @staticmethod
    def _group(rule="adamw", moments="fp32", split=False, nesterov=False, lr=1e-3, weight_decay=0.0,
               betas=(0.9, 0.999), eps=1e-8, momentum=0.9):
        return _library.GroupOptions(
            rule=number_of(RULES, rule, "rule"), moments=number_of(DTYPES, moments, "moments"), split_master=int(split),
            nesterov=int(nesterov), lr=lr, weight_decay=weight_decay, beta1=betas[0], beta2=betas[1], eps=eps,
            momentum=momentum)

    def add_group(self, **settings):
        number = ctypes.c_uint32()
        _library.call("sluice_session_add_group", self._handle, ctypes.byref(self._group(**settings)), ctypes.byref(number))
        return number.value

    def set_group(self, group, **settings):
        _library.call("sluice_session_set_group", self._handle, group, ctypes.byref(self._group(**settings)))

    def add_unit(self, name):
        number = ctypes.c_uint32()
        _library.call("sluice_session_add_unit", self._handle, name.encode(), ctypes.byref(number))
        return number.value

    def add_param(self, name, shape, *, unit, group=None, dtype="fp32", data=None):
        """data: the address of the initial weights, which must stay until seal()."""
        options = _library.ParamOptions(
            dtype=number_of(DTYPES, dtype, "dtype"), ndim=len(shape), unit=unit,
            group=_library.NONE if group is None else group, name=name.encode(),
            shape=(ctypes.c_int64 * len(shape))(*shape), data=data)
        number = ctypes.c_uint32()
        _library.call("sluice_session_add_param", self._handle, ctypes.byref(options), ctypes.byref(number))
        return number.value

    def seal(self):
        _library.call("sluice_session_seal", self._handle)

    def _home(self, function, param):
        tensor = _library.Tensor()
        _library.call(function, self._handle, param, ctypes.byref(tensor))
        return tensor

    def weight_address(self, param):
        return self._home("sluice_session_weight", param).data

    def gradient_address(self, param):
        return self._home("sluice_session_grad", param).data

    def give_gradient(self, param, address):
        """A gradient of the parameter's dtype and shape, dense, in host memory."""
        tensor = self._home("sluice_session_grad", param)
        tensor.data = address
        _library.call("sluice_session_give_grad", self._handle, param, ctypes.byref(tensor))

    def update(self, *, max_norm=0.0, grad_scale=1.0):
        """Returns the norm of all gradients."""
        info = _library.UpdateInfo(max_norm=max_norm, grad_scale=grad_scale)
        _library.call("sluice_session_update", self._handle, ctypes.byref(info))
        return info.grad_norm

    def kind_dtype(self, param, kind):
        number = ctypes.c_int32()
        _library.call("sluice_session_kind_dtype", self._handle, param, number_of(KINDS, kind, "kind"), ctypes.byref(number))
        return next(word for word, code in DTYPES.items() if code == number.value)

    def _copy(self, function, param, kind, address, count, first):
        elem_bytes = DTYPE_BYTES[DTYPES[self.kind_dtype(param, kind)]]
        _library.call(function, self._handle, param, KINDS[kind], first, count, address, count * elem_bytes)

    def read(self, param, kind, address, count, first=0):
        self._copy("sluice_session_read", param, kind, address, count, first)

    def write(self, param, kind, address, count, first=0):
        self._copy("sluice_session_write", param, kind, address, count, first)

    def save(self, path):
        _library.call("sluice_session_save", self._handle, os.fsencode(path))

    def load(self, path):
        """A file of save(), or the directory of commits."""
        _library.call("sluice_session_load", self._handle, os.fsencode(path))

    def commit(self):
        """Makes all weights and state durable as they lie, in the directory commit_path."""
        _library.call("sluice_session_commit", self._handle)

    def stats(self):
        stats = _library.SessionStats()
        _library.call("sluice_session_get_stats", self._handle, ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_ if name != "struct_size"}
