"""Parameters with weights that rest on storage.

Between passes such a parameter has no memory of its own. It keeps its identity, shape, dtype and gradient.
Outside autograd every operation on it reads the true value, and an operation in place writes it back; detach() and
indexing give copies. Inside autograd a use outside its module's pass is refused: the gradient would be lost.
"""
import weakref

import torch

from ._library import InputError

_TENSOR = torch.Tensor
_PROPERTIES = ("shape", "dtype", "device", "layout", "requires_grad", "grad", "grad_fn", "is_leaf", "ndim", "is_sparse",
               "is_quantized", "is_meta", "is_mkldnn", "_backward_hooks", "_post_accumulate_grad_hooks", "_version",
               "is_cuda", "is_cpu", "is_nested", "names", "itemsize", "nbytes", "output_nr", "retains_grad", "_base",
               "is_xla", "is_mps", "is_xpu")
_METHODS = ("size", "dim", "numel", "nelement", "stride", "is_contiguous", "element_size", "requires_grad_",
            "is_floating_point", "is_complex", "storage_offset", "__len__", "data_ptr", "ndimension",
            "is_inference", "get_device", "type", "register_hook", "register_post_accumulate_grad_hook",
            "_is_view", "is_signed", "is_conj", "is_neg", "has_names", "__hash__", "untyped_storage")
# Functions that look at the parameter and not at its value.
_PASSED = ({getattr(_TENSOR, name).__get__ for name in _PROPERTIES if hasattr(_TENSOR, name)}
           | {getattr(_TENSOR, name) for name in _METHODS if hasattr(_TENSOR, name)}
           | {_TENSOR.grad.__set__, _TENSOR.grad.__delete__, _TENSOR.requires_grad.__set__, _TENSOR.__repr__,
              torch.is_floating_point, torch.is_complex, torch.numel})
# Autograd does not see through these.
_PASSED_BY_AUTOGRAD = {_TENSOR.detach, _TENSOR.data.__set__, _TENSOR.tolist, _TENSOR.numpy, _TENSOR.item, torch.equal,
                       _TENSOR.equal, _TENSOR.__reduce_ex__, _TENSOR.__format__}


class StandIn(torch.nn.Parameter):
    """See above. `_source` has read(parameter) and write(parameter, value)."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _PASSED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func == _TENSOR.data.__get__:
            return args[0]._source.data_of(args[0])
        found = []
        values = _replace(args, found), _replace(kwargs, found)
        if torch.is_grad_enabled() and func not in _PASSED_BY_AUTOGRAD:
            for parameter in found:
                if parameter.requires_grad:
                    raise InputError(f"parameter '{parameter._source.name_of(parameter)}' rests on storage and is used "
                                     "outside its module's forward pass with gradients enabled; use it under "
                                     "torch.no_grad(), or keep weights in pinned memory")
        if func == _TENSOR.data.__set__:
            args[0]._source.write(args[0], args[1])
            return None
        if func is _TENSOR.detach:
            return values[0][0]  # a copy already; the same one for each owner of a tied weight
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*values[0], **values[1])
        return _write_back(func, args, kwargs, values, result)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = torch.nn.Parameter(self._source.read(self).clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return torch.nn.Parameter(self._source.read(self), self.requires_grad).__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents=None):
        return f"Parameter containing (on storage):\n{self._source.read(self)!r}"


def _replace(value, found):
    """The arguments with true values in place of stand-ins."""
    if isinstance(value, StandIn):
        found.append(value)
        return value._source.read(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        replaced = [_replace(item, found) for item in value]
        return type(value)(replaced) if type(value) in (list, tuple) else tuple(replaced)
    if isinstance(value, dict):
        return {key: _replace(item, found) for key, item in value.items()}
    return value


def _written(func, args, kwargs):
    """Arguments that the function writes."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__") or name in ("__setitem__", "__set__")
    in_place = in_place or name.startswith("__i") and name not in ("__index__", "__int__", "__invert__")
    first = args[0] if in_place and args else ()
    out = kwargs.get("out", ())
    return [item for value in (first, out)
            for item in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(item, StandIn)]


def _write_back(func, args, kwargs, values, result):
    for parameter in _written(func, args, kwargs):
        value = parameter._source.read(parameter)
        parameter._source.write(parameter, value)
        if result is value:
            result = parameter
    return result


class Values:
    """True values of stand-ins: copies on the host, which live as long as somebody holds them."""

    def __init__(self, read, write):
        self._read, self._write = read, write  # of (parameter, tensor)
        self._known = {}  # id of a parameter: (name, strides)
        self._alive = weakref.WeakValueDictionary()  # id of a parameter: its copy

    def add(self, parameter, name, strides):
        self._known[id(parameter)] = name, strides

    def name_of(self, parameter):
        return self._known[id(parameter)][0]

    def read(self, parameter):
        value = self._alive.get(id(parameter))
        if value is None:
            with torch._C.DisableTorchFunctionSubclass():
                value = torch.empty_strided(parameter.size(), self._known[id(parameter)][1], dtype=parameter.dtype)
                self._read(parameter, value)
            self._alive[id(parameter)] = value
        return value

    def write(self, parameter, value):
        with torch._C.DisableTorchFunctionSubclass():
            own = torch.empty_strided(parameter.size(), self._known[id(parameter)][1], dtype=parameter.dtype)
            own.copy_(value)
            self._write(parameter, own)

    def data_of(self, parameter):
        """Stands for parameter.data: without gradients, and a write in place goes to the parameter."""
        with torch._C.DisableTorchFunctionSubclass():
            data = torch.Tensor._make_subclass(StandIn, parameter.data, False)
        data._source = _DataOf(self, parameter)
        return data

    def forget(self):
        """The values on storage have changed."""
        self._alive.clear()


class _DataOf:
    """The source of parameter.data: that of the parameter."""

    def __init__(self, values, parameter):
        self._values, self._parameter = values, parameter

    def name_of(self, data):
        return self._values.name_of(self._parameter)

    def read(self, data):
        return self._values.read(self._parameter)

    def write(self, data, value):
        self._values.write(self._parameter, value)

    def data_of(self, data):
        return data
