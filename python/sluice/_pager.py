"""The pager of the C API: weights in windows on the device, state in pinned memory, a unit at a time."""
import ctypes

from . import _library
from ._library import call

PLACES = {"auto": 0, "pinned": 1, "storage": 2, "cpu": 1, "nvme": 2}
WEIGHT, STATE = 0, 1


class Pager(_library.Handle):
    """See the section on pagers in sluice.h for the order of calls. Tensors are bytes here."""

    def __init__(self, engine, *, weights="auto", state="auto", window_bytes=0):
        options = _library.PagerOptions(weights=_library.number_of(PLACES, weights, "weights"),
                                        state=_library.number_of(PLACES, state, "state"), window_bytes=window_bytes)
        handle = ctypes.c_void_p()
        call("sluice_pager_create", engine._handle, ctypes.byref(options), ctypes.byref(handle))
        super().__init__(handle, _library.LIBRARY.sluice_pager_destroy)

    def add_unit(self, name):
        number = ctypes.c_uint32()
        call("sluice_pager_add_unit", self._handle, name.encode(), ctypes.byref(number))
        return number.value

    def add(self, unit, part, size_bytes, address=None):
        """address: of the initial bytes, which must stay until seal(); None: zeros."""
        number = ctypes.c_uint32()
        call("sluice_pager_add", self._handle, unit, part, size_bytes, address, ctypes.byref(number))
        return number.value

    def seal(self):
        call("sluice_pager_seal", self._handle)

    def _address(self, function, tensor):
        address = ctypes.c_void_p()
        call(function, self._handle, tensor, ctypes.byref(address))
        return address.value

    def window(self, tensor):
        return self._address("sluice_pager_window", tensor)

    def home(self, tensor):
        """None if the tensor rests on storage."""
        return self._address("sluice_pager_home", tensor)

    def staged(self, tensor):
        return self._address("sluice_pager_staged", tensor)

    def begin_pass(self):
        call("sluice_pager_begin_pass", self._handle)

    def acquire(self, unit):
        call("sluice_pager_acquire", self._handle, unit, None)

    def release(self, unit):
        call("sluice_pager_release", self._handle, unit, None)

    def stage(self, unit, next_unit=None):
        call("sluice_pager_stage", self._handle, unit, _library.NONE if next_unit is None else next_unit)

    def unstage(self, unit):
        call("sluice_pager_unstage", self._handle, unit)

    def settle(self):
        call("sluice_pager_settle", self._handle)

    def read(self, tensor, address, size_bytes, first=0):
        call("sluice_pager_read", self._handle, tensor, first, address, size_bytes)

    def write(self, tensor, address, size_bytes, first=0):
        call("sluice_pager_write", self._handle, tensor, first, address, size_bytes)

    def stats(self):
        stats = _library.PagerStats()
        call("sluice_pager_get_stats", self._handle, ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_ if name != "struct_size"}
