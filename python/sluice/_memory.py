"""PyTorch tensors over the pager's memory."""
import ctypes
import sys

import torch

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


def tensor_at(address, like, keeper, dtype=None):
    """A tensor with the shape and strides of `like` over memory that `keeper` owns, which it keeps alive."""
    dtype = dtype or like.dtype
    count = like.numel()
    memory = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
    memory.keeper = keeper
    return torch.frombuffer(memory, dtype=dtype, count=count).as_strided(like.size(), like.stride()).data  # no view


def storage_of(tensor):
    """Identifies the tensor's memory for as long as a tensor over it lives."""
    return tensor.untyped_storage()._cdata


def holders(tensor):
    """How many tensors, graphs and other objects have the tensor's memory, itself among them. The storage's object counts
    once in its own count, and has the references of this function, of the call and of PyTorch."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) - 1 + sys.getrefcount(storage) - 3


def bytes_of(tensor):
    return tensor.numel() * tensor.element_size()


def is_same_memory(a, b, size):
    """Whether the bytes at two addresses are equal."""
    return _compare(a, b, size) == 0


class Snapshots:
    """Copies of bytes for a short time, in memory that is kept: fresh pages cost three times the copy. It keeps as many
    buffers as were in use at once."""

    def __init__(self):
        self._free = []

    def take(self, address, size):
        """A buffer that begins with these bytes; give() it back."""
        fitting = [buffer for buffer in self._free if len(buffer) >= size]
        buffer = min(fitting, key=len, default=None)
        if buffer is not None:
            self._free.remove(buffer)
        else:
            if self._free:
                self._free.remove(min(self._free, key=len))
            buffer = (ctypes.c_char * size)()
        ctypes.memmove(buffer, address, size)
        return buffer

    def give(self, buffer):
        self._free.append(buffer)


def is_dense(tensor):
    """Whether the elements fill their memory without gaps or overlaps, in whatever order."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.size()) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True
