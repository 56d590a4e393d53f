"""Memory that the program shares with parameters before offload(): views of them and flat buffers below them.

A parameter's home is other memory. A tensor of the program over the former memory gets the same place in the home, and
so shares on. A home on storage has no memory: using such a tensor raises then. Tensors are objects of Python, and its
collector knows them all. A graph that autograd has made before may hold a parameter's memory, too, but only its own
backward pass could read that. An array of NumPy below a parameter cannot be seen.
"""
import bisect
import collections
import gc
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
    may_share = False
    for name, parameter in named:
        # Several storages may lie over one memory only where PyTorch did not allocate it, or an array was made of it.
        may_share |= holders(parameter) > counts[storage_of(parameter)] or not parameter.untyped_storage().resizable()
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
    return [(tensor, parameter) for tensor, parameter, _ in found]


def place_of(view, parameter):
    """Offset, in elements of the view, from the parameter's begin."""
    return (view.data_ptr() - parameter.data_ptr()) // view.element_size()


def move(view, offset, home):
    """Makes it a view of the home's memory."""
    with torch.no_grad():
        view.data = home.as_strided(view.size(), view.stride(), offset).data
