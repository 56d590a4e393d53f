"""PyTorch tensors over the pager's memory."""
import ctypes

import torch


def tensor_at(address, like, keeper, dtype=None):
    """A tensor with the shape and strides of `like` over memory that `keeper` owns, which it keeps alive."""
    dtype = dtype or like.dtype
    count = like.numel()
    memory = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
    memory.keeper = keeper
    return torch.frombuffer(memory, dtype=dtype, count=count).as_strided(like.size(), like.stride())


def bytes_of(tensor):
    return tensor.numel() * tensor.element_size()
