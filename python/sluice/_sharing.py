"""Memory that the program shares with parameters before offload(): views of them and flat buffers below them.

A parameter's home is other memory. A tensor of the program over the former memory gets the same place in the home, and
so shares on. A home on storage has no memory: using such a tensor raises then. Tensors are objects of Python, and its
collector knows them all. A graph that autograd has made before may hold a parameter's memory, too, but only its own
backward pass could read that.

An array below a parameter, as of torch.from_numpy(), cannot get other memory, so it is refused. The collector does not
know arrays, but it knows the objects that refer to them. The tensor's own reference to its array is not among those, so
memory of a file's loader that nobody else holds is no array of the program.
"""
import array
import bisect
import collections
import ctypes
import gc
import inspect
import mmap
import sys

import torch

from ._library import InputError
from ._memory import bytes_of, holders, storage_of


def _extent(tensor):
    """Addresses of the tensor's elements; None if it has no memory of its own on the CPU."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.numel() == 0:
        return None
    try:
        begin = tensor.data_ptr()
    except RuntimeError:
        return None
    count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
    return (begin, begin + count * tensor.element_size()) if begin else None


def _extent_of_buffer(item):
    """The extent of an object with memory that a program can write."""
    if hasattr(item, "__array_interface__"):
        if item.size == 0:
            return None
        begin = item.__array_interface__["data"][0]
        steps = [(size - 1) * stride for size, stride in zip(item.shape, item.strides)]
        return begin + sum(step for step in steps if step < 0), begin + item.itemsize + sum(step for step in steps if step > 0)
    try:
        size = len(item) if isinstance(item, mmap.mmap) else memoryview(item).nbytes
        begin = ctypes.addressof(ctypes.c_char.from_buffer(item))
    except (TypeError, ValueError, BufferError):
        return None  # read-only, closed, or with gaps
    return begin, begin + size


def _locals():
    """The local variables of all running functions but ours, which the collector does not look into."""
    found = []
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_globals is not globals():
                variables = frame.f_locals
                found.append(list(variables.values()))
                if isinstance(variables, dict):  # a copy, which Python before 3.13 would keep, and with it deleted objects
                    variables.clear()
            frame = frame.f_back
    return found


def _find_array(spans):
    """(name of a parameter, type of an array or another buffer of the program over its memory), or None. It raises nothing:
    a traceback would hold the long lists of this function, for the next search to go through."""
    numpy = sys.modules.get("numpy")
    kinds = (bytearray, memoryview, array.array, mmap.mmap, *([numpy.ndarray] if numpy is not None else []))
    begins, seen = [span[0] for span in spans], set()
    containers = [*_locals(), *gc.get_objects()]
    while containers:
        referents = gc.get_referents(*containers)
        containers.clear()
        found = {kind for kind in set(map(type, referents)) if issubclass(kind, kinds)}
        for item in [item for item in referents if type(item) in found] if found else ():
            extent = _extent_of_buffer(item)
            at = bisect.bisect_left(begins, extent[1]) - 1 if extent is not None else -1
            if at >= 0 and extent[0] < spans[at][1]:
                referents.clear()  # the frame of this function may be in it
                return spans[at][2], type(item).__name__
        # The collector does not know those that could be in no cycle.
        containers += [item for item in referents if type(item) in (dict, tuple) and not gc.is_tracked(item)
                       and not (id(item) in seen or seen.add(id(item)))]
        referents.clear()
    return None


def _find(spans):
    """[(another tensor over memory of a parameter, the parameter, its name)]. spans: (begin, end, name, parameter)."""
    found, begins = [], [span[0] for span in spans]
    ours = {id(span[3]) for span in spans}
    with torch._C.DisableTorchFunctionSubclass():
        for item in gc.get_objects():
            if not issubclass(type(item), torch.Tensor) or id(item) in ours:
                continue
            extent = _extent(item)
            at = bisect.bisect_left(begins, extent[1]) - 1 if extent is not None else -1
            if at >= 0 and extent[0] < spans[at][1]:
                _, end, name, parameter = spans[at]
                if extent[0] < spans[at][0] or extent[1] > end or not item.untyped_storage().resizable() or (
                        item.dtype != parameter.dtype):
                    parameter = None
                found.append((item, parameter, name))
    return found


def find_views(units):
    """[(tensor of the program, parameter that it is a view of)]. Raises InputError where the two would part."""
    named = [(name, parameter) for unit in units for name, parameter in unit.parameters.items()]
    spans = sorted(((parameter.data_ptr(), parameter.data_ptr() + bytes_of(parameter), name, parameter)
                    for name, parameter in named), key=lambda span: span[0])
    for (_, end, name, _), (begin, _, other, _) in zip(spans, spans[1:]):
        if begin < end:
            raise InputError(f"parameters '{name}' and '{other}' share memory but are two objects; tie them as one")
    counts = collections.Counter(storage_of(parameter) for _, parameter in named)
    may_share = may_have_array = False
    for name, parameter in named:
        # Several storages may lie over one memory only where PyTorch did not allocate it, or an array was made of it.
        may_have_array |= not parameter.untyped_storage().resizable()
        may_share |= may_have_array or holders(parameter) > counts[storage_of(parameter)]
        storage = parameter.untyped_storage()
        if sys.getrefcount(storage) > 3:  # the name's, the call's and PyTorch's
            raise InputError(f"the storage of parameter '{name}' is held by the program, and would not see its updates after "
                             "offload(); drop it first")
        if storage.is_shared():
            raise InputError(f"parameter '{name}' is shared with another process, which would not see its updates after offload(); "
                             "share copies")
        del storage
    found = _find(spans) if may_share else []
    if found:
        del found
        gc.collect()
        found = _find(spans)
    for tensor, parameter, name in found:
        if parameter is None or type(tensor) is not torch.Tensor or tensor.is_inference():
            raise InputError(f"parameter '{name}' shares memory with another tensor, of shape {tuple(tensor.size())}, or with an "
                             "array over one; it would not see updates after offload(): drop or clone it first, or give "
                             "the parameter memory of its own by parameter.data = parameter.data.clone()")
    if may_have_array and (kept := _find_array(spans)) is not None:
        raise InputError(f"parameter '{kept[0]}' shares memory with an object of the program, of type {kept[1]}, which would not "
                         "see updates after offload(): drop it first, or give the parameter memory of its own by "
                         "parameter.data = parameter.data.clone()")
    return [(tensor, parameter) for tensor, parameter, _ in found]


def place_of(view, parameter):
    """Offset, in elements of the view, from the parameter's begin."""
    return (view.data_ptr() - parameter.data_ptr()) // view.element_size()


def move(view, offset, home):
    """Makes it a view of the home's memory."""
    with torch.no_grad():
        view.data = home.as_strided(view.size(), view.stride(), offset).data
