"""A unit with its tensors: where its weights rest, and where they are in a pass and in an update.

Between passes a parameter's data are its home in pinned memory; one that rests on storage is a stand-in
(_stand_in.py) over pages that nobody touches. In a pass its data are its window. The parameter stays the same object,
so gradients, hooks and the graph are PyTorch's own.
"""
import ctypes
import mmap

import torch

from ._library import InputError
from ._memory import bytes_of, tensor_at
from ._stand_in import StandIn

_LOOKS = 4  # passes, back and forth, in which writes through parameter.data are looked for: torch counts none
_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


def _nothing(like):
    """A tensor as `like` in pages that take no memory while nobody touches them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    pages = mmap.mmap(-1, bytes_of(like), flags=flags)
    return torch.frombuffer(pages, dtype=like.dtype, count=like.numel()).as_strided(like.size(), like.stride())


class OffloadedUnit:
    """See above. Graphs hold it, so it holds no module: a model that keeps its outputs could not be freed."""

    def __init__(self, unit, pager):
        self.name, self.parameters = unit.name, unit.parameters
        self._pager = pager
        self._values = None  # of stand-ins
        self.numbers = {}    # parameter: number of its weight in the pager
        self.homes = {}      # parameter: tensor over its home; over nothing if it rests on storage
        self.staged = {}     # parameter: tensor over its staged weight
        self.windows = {}    # parameter: (tensor over its window, the address)
        self.span = 0, 0     # addresses of all windows
        self._addresses = {}  # parameter: of its home; None if it rests on storage
        self._looks = _LOOKS
        self._writes = False  # its modules write through parameter.data in their passes
        self._seen = {}      # parameter in a pass: its version at the begin, and bytes to compare with, or their address

    def move(self, values):
        """The parameters' data become those of their homes."""
        self._values = values
        for name, parameter in self.parameters.items():
            number = self.numbers[parameter]
            like = parameter.data
            address = self._pager.window(number)
            self.windows[parameter] = tensor_at(address, like, self._pager), address
            self.staged[parameter] = tensor_at(self._pager.staged(number), like, self._pager)
            values.add(parameter, name, like.stride())
            self._addresses[parameter] = self._pager.home(number)
            if self.is_stored(parameter):
                self.homes[parameter] = _nothing(like)
                self.guard(parameter)
            else:
                self.homes[parameter] = parameter.data = self.staged[parameter]
        self.span = (min(address for _, address in self.windows.values()),
                     max(address + bytes_of(window) for window, address in self.windows.values()))

    def guard(self, parameter):
        """A parameter that rests on storage, between passes."""
        parameter.data = self.homes[parameter]
        parameter.__class__ = StandIn
        parameter._source = self._values

    def unguard(self, parameter):
        """For the time of an update or a pass, and for good in restore()."""
        if type(parameter) is StandIn:
            parameter.__class__ = torch.nn.Parameter
            del parameter._source
            parameter.data = self.staged[parameter]

    def check_places(self, places):
        """places: (module, name in the module, parameter) of all that refer to the unit's parameters."""
        for module, key, parameter in places:
            if module._parameters.get(key) is not parameter:
                raise InputError(f"parameter '{key}' of unit '{self.name}' was replaced after offload(); write into it, "
                                 "or call sluice.restore(model) first")
            if parameter._post_accumulate_grad_hooks:
                raise InputError(f"parameter '{key}' of unit '{self.name}' has got a hook after its gradient, which "
                                 "would find a weight that leaves; remove it")

    def put_in(self, trains):
        """trains: whether the module is in training; evaluation does not look for writes."""
        looks = self._writes or trains and self._looks > 0
        self._looks -= trains and self._looks > 0
        for parameter, (window, address) in self.windows.items():
            before = None
            if type(parameter) is StandIn:
                parameter.__class__ = torch.nn.Parameter
                del parameter._source
                before = ctypes.string_at(address, bytes_of(window)) if looks else None
            elif looks:
                before = self._addresses[parameter]
                self._follow(address, before, bytes_of(window))
            parameter.data = window
            self._seen[parameter] = parameter._version, before

    def _follow(self, window, home, size):
        """A home that was written through parameter.data between forward and backward. By address, because a transform
        of torch.func wraps tensors."""
        if _compare(window, home, size):
            self._writes = True
            ctypes.memmove(window, home, size)

    def take_out(self):
        """Returns whether weights were written in the pass; they have come home then."""
        written = []
        for parameter, (version, before) in self._seen.items():
            _, address = self.windows[parameter]
            value = parameter.data
            if parameter._version != version or value.data_ptr() != address:
                written.append((parameter, value))
            elif before is not None and _compare(address, before, bytes_of(value)):
                self._writes = True  # torch has not counted it
                written.append((parameter, value))
            if self.is_stored(parameter):
                self.guard(parameter)
            else:
                parameter.data = self.homes[parameter]
        self._seen.clear()
        for parameter, value in written:
            self._check_kind(value, parameter)
            self.windows[parameter][0].copy_(value)
            if self.is_stored(parameter):
                self._values.write(parameter, value)
            else:
                self.homes[parameter].copy_(value)
        return bool(written)

    def is_stored(self, parameter):
        return self._addresses[parameter] is None

    def _check_kind(self, value, parameter):
        home = self.homes[parameter]
        if value.shape != home.shape or value.dtype != home.dtype or value.device != home.device:
            raise InputError(f"a parameter of unit '{self.name}' has become {value.dtype} of shape {tuple(value.shape)} "
                             f"on {value.device}; call sluice.restore(model) before you convert or move it")

    def take_replaced(self):
        """Data that the program has put in the place of homes since the last pass are copied there."""
        for parameter, address in self._addresses.items():
            if address is None:
                continue
            home = self.homes[parameter]
            if home.data_ptr() != address:
                raise InputError(f"the memory of a parameter of unit '{self.name}' was moved by share_memory() or by a "
                                 "queue to another process, which an offloaded model cannot follow; send copies, or call "
                                 "sluice.restore(model) before you share")
            if parameter.data_ptr() != address:
                self._check_kind(parameter.data, parameter)
                home.copy_(parameter.data)
                parameter.data = home

    def restore(self):
        for parameter in self.windows:
            value = self._values.read(parameter) if type(parameter) is StandIn else parameter.data
            own = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
            own.copy_(value)
            self.unguard(parameter)
            parameter.data = own
        self.windows, self.staged, self.homes = {}, {}, {}
        self._values = self._pager = None
