"""The weights of an offloaded model: the memory in which each rests, and its window in a pass.

In plain PyTorch a parameter's memory is that of the tensor that was assigned to `parameter.data` last, and others may
hold it, too: a backup, an average, an array. So a weight rests in a place: its home, or a tensor of the program. Three
rules give plain PyTorch's bits.

1. A pass uses a window only for a weight that rests at home, and only if nobody else holds the home. Each other weight
   is used where it lies.
2. Window and home are compared when a window is put in and when it is taken out. PyTorch counts no writes through
   parameter.data, so there is no cheaper sign of them.
3. Bytes of an assigned tensor go home when nobody else holds it and nobody needs the bytes at home. Until then the
   weight stays in the program's memory.
"""
import bisect
import ctypes
import mmap
import weakref
from collections import defaultdict

import torch

from ._library import InputError
from ._memory import Snapshots, bytes_of, holders, is_dense, is_same_memory, storage_of, tensor_at
from ._stand_in import StandIn, Unguarded


def _nothing(like, name):
    """A tensor as `like` in pages that take no memory while nobody touches them; PyTorch refuses to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    pages = mmap.mmap(-1, bytes_of(like), flags=flags)
    tensor = torch.frombuffer(pages, dtype=like.dtype, count=like.numel()).as_strided(like.size(), like.stride()).data
    torch._C._set_storage_data_ptr_access_error_msg(
        storage_of(tensor), f"parameter '{name}' rests on storage, and this tensor stands for it: it has no memory to share "
        "or to read; use parameter.data.clone()")
    return tensor


def _is_same(a, b):
    """Whether two tensors are the same view of the same memory."""
    return (storage_of(a) == storage_of(b) and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
            and a.shape == b.shape and a.dtype == b.dtype)


class Place:
    """Memory in which a weight rests. tensor: of its home (without memory if that is on storage) or of the program.
    Tensors that autograd has saved of a window hold the place of the weight at that time."""

    def __init__(self, tensor):
        self.tensor = tensor


class Weight:
    """One weight. Its parameter's data are its window in a pass, and its place's tensor otherwise."""

    def __init__(self, name, parameter, number, weights):
        like = parameter.data
        self.name, self.parameter = name, parameter
        self._number, self._weights = number, weights
        self._address, self._home_address = weights.pager.window(number), weights.pager.home(number)
        self.is_in = False   # the parameter's data are its window, or were when the pass began
        self._saved = {}     # id: weak reference to a view of the window that autograd has saved
        self._shape(like)
        self.place = Place(self.home)
        self._home_place = weakref.ref(self.place)
        self._rest()

    def _shape(self, like):
        """Tensors with the strides of `like`."""
        pager = self._weights.pager
        self.window = tensor_at(self._address, like, pager)
        self.staged = tensor_at(pager.staged(self._number), like, pager)
        self.home = _nothing(like, self.name) if self.is_stored else self.staged
        self._weights.values.add(self.parameter, self.name, like.stride())

    @property
    def is_stored(self):
        """Whether the home is on storage."""
        return self._home_address is None

    @property
    def is_home(self):
        return self.place.tensor is self.home

    @property
    def span(self):
        """Addresses of the window."""
        return self._address, self._address + bytes_of(self.window)

    def _set(self, data):
        """Memory for a parameter with a home on storage."""
        self.parameter.__class__, self.parameter._source = Unguarded, self._weights.values
        self.parameter.data = data

    def _rest(self):
        """The parameter's data become those of its home."""
        if self.is_stored:
            self._set(self.home)
            self.parameter.__class__ = StandIn
        else:
            self.parameter.data = self.home

    def assign(self, value):
        """parameter.data = value, for a home on storage. None: the home itself."""
        if self.is_in:
            raise InputError(f"parameter '{self.name}' is in its module's pass and cannot become its own older data, which "
                             "rest on storage; assign a clone()")
        if value is None:
            self._come_to(self._home_place() or Place(self.home))
            self._rest()
        else:
            self._set(value)
            self.look()
            self._weights.settle(self)

    def _come_to(self, place):
        self.place = place
        if self.is_home:
            self._home_place = weakref.ref(place)
            self._weights.displaced.pop(self, None)
        else:
            self._weights.displaced[self] = None

    def look(self):
        """Follows an assignment to parameter.data."""
        parameter = self.parameter
        if not self.is_stored and self.home.data_ptr() != self._home_address:
            raise InputError(f"the memory of parameter '{self.name}' was moved by share_memory() or by a queue to another "
                             "process, which an offloaded model cannot follow; send copies, or call "
                             "sluice.restore(model) before you share")
        if type(parameter) is StandIn or _is_same(parameter, self.place.tensor) and not (self.is_stored and self.is_home):
            return
        if _is_same(parameter, self.home):
            self._come_to(self._home_place() or Place(self.home))
            self._rest()
            return
        if parameter.shape != self.home.shape or parameter.dtype != self.home.dtype or parameter.device != self.home.device:
            raise InputError(f"parameter '{self.name}' has become {parameter.dtype} of shape {tuple(parameter.shape)} on "
                             f"{parameter.device}; call sluice.restore(model) before you convert or move it")
        if parameter.layout != torch.strided:
            raise InputError(f"parameter '{self.name}' has become a tensor of layout {parameter.layout}; use dense ones")
        other = self._weights.at(parameter.untyped_storage().data_ptr())
        if other is not None:
            raise InputError(f"parameter '{self.name}' has become a view of '{other.name}' in a pass, whose memory leaves with "
                             "the pass; assign a clone()")
        self._come_to(Place(parameter.data))

    def put_in(self):
        """The unit is in its windows."""
        self.look()
        if type(self.parameter) is StandIn:
            self._set(self.window)
            self.is_in = True
        elif self.is_home and holders(self.home) == 2:  # the home's own tensor and the parameter
            self._copy_if_other(self._address, self._home_address)
            self.parameter.data = self.window
            self.is_in = True

    def _copy_if_other(self, to, source):
        """By address, because a transform of torch.func wraps tensors."""
        size = bytes_of(self.window)
        if not is_same_memory(to, source, size):
            ctypes.memmove(to, source, size)

    def take_out(self, former):
        """former: address of the bytes that the window of a weight on storage had when it was put in; None: it has them
        still. Returns whether the pass has written them: bytes that were fetched ahead may be older."""
        if not self.is_in:
            return False
        self.is_in, is_written = False, False
        if not self.is_stored:
            self._copy_if_other(self._home_address, self._address)
        elif former is not None and not is_same_memory(self._address, former, bytes_of(self.window)):
            is_written = True
            self._weights.values.write(self.parameter, self.window)
        if _is_same(self.parameter, self.window):
            self._rest()
            return is_written
        try:
            self.look()
        except InputError:
            self._rest()
            raise
        return is_written

    def stage(self):
        """For an update, between sluice_pager_stage() and sluice_pager_unstage()."""
        if type(self.parameter) is StandIn:
            self._set(self.staged)

    def unstage(self):
        if self.is_stored and _is_same(self.parameter, self.staged):
            self._rest()

    def note_saved(self, view):
        """Autograd saves a view of the window. Returns its place."""
        self._saved[id(view)] = weakref.ref(view)
        return self.place

    def true_view(self, view, place):
        """The bytes that a saved view of the window shows in plain PyTorch: those of the memory of its time."""
        if self.is_in and place is self.place:
            return view
        base = place.tensor if place.tensor is not self.home or not self.is_stored else self._weights.values.read(self.parameter)
        if view.dtype != base.dtype:
            raise InputError(f"parameter '{self.name}' has got other data since a tensor of another dtype over it was saved for "
                             "the backward pass; assign after the backward pass")
        return base.as_strided(view.size(), view.stride(), base.storage_offset() + view.storage_offset())

    def is_kept(self, known):
        """Whether tensors other than saved ones and `known` ones hold the window."""
        if not self.is_in:
            return False
        expected = 1 + (storage_of(self.parameter) == storage_of(self.window))
        if holders(self.window) == expected:
            return False
        self._saved = {key: reference for key, reference in self._saved.items() if reference() is not None}
        views = {id(tensor) for tensor in known if tensor.layout == torch.strided and tensor is not self.parameter
                 and storage_of(tensor) == storage_of(self.window)}
        return holders(self.window) > expected + len(views | self._saved.keys())

    def may_go_home(self):
        """Whether nobody needs the bytes at home; the weight is elsewhere, and nobody else holds that memory."""
        place = self._home_place()
        if self.is_in or place is not None or not is_dense(self.parameter):
            return False
        return not self._weights.values.is_held(self.parameter) if self.is_stored else holders(self.home) == 1

    def go_home(self):
        value = self.place.tensor
        if value.stride() != self.home.stride():
            self._shape(value)
        if self.is_stored:
            self._weights.values.replace(self.parameter, value)
        else:
            ctypes.memmove(self._home_address, value.data_ptr(), bytes_of(value))
        self.place.tensor = self.home
        self._come_to(self.place)
        self._rest()

    def restore(self):
        """The parameter's data become memory of PyTorch's own."""
        parameter = self.parameter
        value = None
        if type(parameter) is StandIn:
            value = self._weights.values.read(parameter)
        elif storage_of(parameter) == storage_of(self.home):
            value = parameter.data
        self.window = self.staged = self.home = self.place = self._weights = None
        if type(parameter) is not torch.nn.Parameter:
            parameter.__class__ = torch.nn.Parameter
            del parameter._source
        if value is None:
            return  # the program's memory
        own = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
        own.copy_(value)
        parameter.data = own


class Weights:
    """All weights of one model."""

    def __init__(self, pager, values):
        self.pager, self.values = pager, values
        self.snapshots = Snapshots()
        self.displaced = {}  # weights that do not rest at home, in the order of their assignment
        self._of = {}        # id of a parameter: weight
        self._begins = []    # of all windows, ascending
        self._ordered = []   # weights in that order

    def add(self, name, parameter, number):
        weight = Weight(name, parameter, number, self)
        self._of[id(parameter)] = weight
        begin, _ = weight.span
        at = bisect.bisect(self._begins, begin)
        self._begins.insert(at, begin)
        self._ordered.insert(at, weight)
        return weight

    def of(self, parameter):
        return self._of[id(parameter)]

    def at(self, address):
        """The weight with this address in its window, or None."""
        at = bisect.bisect(self._begins, address) - 1
        return self._ordered[at] if at >= 0 and address < self._ordered[at].span[1] else None

    def settle(self, newest=None):
        """Assigned tensors go home, except the one that is just being assigned. Those that share memory, such as the slices
        of a flat vector, go together."""
        groups = defaultdict(list)
        for weight in self.displaced:
            groups[storage_of(weight.parameter)].append(weight)
        for group in groups.values():
            tensor, storage = group[0].parameter, group[0].parameter.untyped_storage()
            can_go = newest not in group and storage.resizable() and not storage.is_shared()
            # Each weight has its parameter and the tensor of its place. Memory that cannot be resized is a file's or an
            # array's.
            del storage
            if can_go and holders(tensor) == 2 * len(group) and not _do_overlap(group):
                if all(weight.may_go_home() for weight in group):
                    for weight in group:
                        weight.go_home()


def _do_overlap(group):
    spans = sorted((weight.parameter.data_ptr(), bytes_of(weight.parameter)) for weight in group)
    return any(begin + size > following for (begin, size), (following, _) in zip(spans, spans[1:]))
