"""Device memory for PyTorch's CUDA tensors, from Sluice's allocator."""
import ctypes

import torch

from . import _library


class Allocator(_library.Handle):
    """The allocator of an engine on "cuda:N", attached for PyTorch's tensors there.

    `pluggable` is for torch.cuda.memory.change_current_allocator(), `pluggable.allocator()` for MemPool. planned: steps
    that repeat, each begun by step(), are answered from an arena that is packed for them.
    """

    def __init__(self, engine, *, planned=False, recorded_events=0):
        options = _library.AllocatorOptions(planned=int(planned), recorded_events=recorded_events)
        handle = ctypes.c_void_p()
        _library.call("sluice_allocator_create", engine._handle, ctypes.byref(options), ctypes.byref(handle))
        super().__init__(handle, _library.LIBRARY.sluice_allocator_destroy)
        _library.call("sluice_torch_attach", self._handle)
        self.pluggable = torch.cuda.memory.CUDAPluggableAllocator(
            _library.LIBRARY._name, "sluice_torch_alloc", "sluice_torch_free")
        # PyTorch drops tensor.record_stream() of an allocator that was not given this function.
        recorder = ctypes.cast(_library.LIBRARY.sluice_torch_record_stream, ctypes.c_void_p)
        self.pluggable.allocator().set_record_stream_fn(recorder.value)

    def step(self):
        """A step of the program begins."""
        _library.call("sluice_allocator_step", self._handle)

    def stats(self):
        stats = _library.AllocatorStats()
        _library.call("sluice_allocator_get_stats", self._handle, ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_ if name not in ("struct_size", "reserved")}
