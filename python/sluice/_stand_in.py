"""Parameters with weights that rest on storage.

Between passes such a parameter has no memory of its own. It keeps its identity, shape, dtype and gradient.
Outside autograd every operation on it reads the true value, and an operation in place writes it back, through views,
too. Inside autograd a use outside its module's pass is refused: the gradient would be lost. detach(), and so
state_dict(), gives a copy that is read and saved like any tensor. A write to the copy would be lost, so it raises.
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
              torch.is_floating_point, torch.is_complex, torch.numel, torch._has_compatible_shallow_copy_type,
              torch.autograd.grad, torch.autograd.backward, torch.autograd.graph.get_gradient_edge})
# Named as if they wrote elements, but they do not.
_WRITES_NOTHING = {_TENSOR.share_memory_, _TENSOR.detach_}
_DETACHES = {_TENSOR.detach, torch.detach}
# They hand the memory to code whose writes nobody sees.
_EXPORTS = {_TENSOR.__dlpack__}
_ARRAYS = {_TENSOR.numpy, _TENSOR.__array__}
_CONVERSIONS = {getattr(_TENSOR, name) for name in ("to", "cpu", "float", "double", "half", "bfloat16", "contiguous")}
# Autograd does not see through these.
_PASSED_BY_AUTOGRAD = {*_DETACHES, _TENSOR.data.__set__, _TENSOR.tolist, _TENSOR.numpy, _TENSOR.item, torch.equal,
                       _TENSOR.equal, _TENSOR.__reduce_ex__, _TENSOR.__format__}


class StandIn(torch.nn.Parameter):
    """See above. `_source` has read(parameter) and write(parameter, value)."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _call(func, args, kwargs or {})

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = torch.nn.Parameter(self._source.read(self).clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return torch.nn.Parameter(self._source.read(self), self.requires_grad).__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents=None):
        return f"Parameter containing (on storage):\n{self._source.read(self)!r}"


class Unguarded(torch.nn.Parameter):
    """The parameter while it has memory: in a pass, in an update, and with data of the program's. Only an assignment to
    its data goes another way, because older data of its own have none."""

    @property
    def data(self):
        return _TENSOR.data.__get__(self)

    @data.setter
    def data(self, value):
        if isinstance(value, (StandIn, View, Copy)):
            self._source.assign(self, value)
        else:
            _TENSOR.data.__set__(self, value)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = torch.nn.Parameter(self.data.clone(memory_format=torch.preserve_format), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return torch.nn.Parameter(self.data, self.requires_grad).__reduce_ex__(protocol)


class View(torch.Tensor):
    """A view of a placeholder's value: a write in place goes to the parameter."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _call(func, args, kwargs or {})

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), self._source.read(self).clone())

    def __reduce_ex__(self, protocol):
        return self._source.read(self).clone().__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents=None):
        return repr(self._source.read(self))


class Copy(torch.Tensor):
    """A copy of a stored value for readers: a write in place raises `_sentence`. Results that share its memory are such
    copies, too. It is saved and copied as a plain tensor."""
    _sentence, _is_state, _origin = "this tensor is a copy of one on storage; write to a clone() of it", False, None

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _call(func, args, kwargs or {})

    @classmethod
    def of(cls, value, sentence, is_state=False):
        with torch._C.DisableTorchFunctionSubclass():
            copy = torch.Tensor._make_subclass(cls, value, False)
        copy._value, copy._sentence, copy._is_state = value, sentence, is_state
        return copy

    @classmethod
    def of_parameter(cls, value, base, parameter, values):
        """A copy of base, the parameter's value, or of a part of it."""
        copy = cls.of(value, f"this tensor is a copy of parameter '{values.name_of(parameter)}', which rests on storage, so "
                             "a write to it would be lost; write to the parameter itself under torch.no_grad(), or to a "
                             "clone() of this")
        copy._origin, copy._seen = (values, parameter, base), base._version
        return copy

    def settle(self):
        """Code that Python does not see may have written, such as the broadcast of DistributedDataParallel."""
        values, parameter, base = self._origin
        if base._version != self._seen:
            self._seen = base._version
            values.take_written(parameter, base)

    def __del__(self):
        if self._origin is not None:
            self.settle()
            self._origin[0].copies.pop(id(self), None)

    def _plain(self):
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)

    def __copy__(self):
        return self._plain().clone()

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), self._plain().clone())

    def __reduce_ex__(self, protocol):
        return self._plain().__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents=None):
        return repr(self._plain())


def _call(func, args, kwargs):
    """The function with true values in the place of placeholders and their views."""
    if func in _PASSED:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    for copy in _written(func, args, kwargs, Copy):
        if func not in _WRITES_NOTHING:
            raise InputError(copy._sentence)
    first = args[0] if args else None
    if func in _EXPORTS and isinstance(first, (StandIn, View, Copy)):
        raise InputError(first._sentence if isinstance(first, Copy) else
                         f"parameter '{first._source.name_of(first)}' rests on storage, and a write through DLPack would be "
                         "lost; pass a clone()")
    if isinstance(first, (StandIn, View)):
        if func == _TENSOR.data.__get__:
            return first._source.data_of(first)
        if func is _TENSOR.share_memory_:
            raise InputError(f"parameter '{first._source.name_of(first)}' rests on storage, which cannot be shared; "
                             "call sluice.restore(model) first")
        if func == _TENSOR.data.__set__:
            return first._source.assign(first, args[1])
        if func is _TENSOR.set_:
            raise InputError(f"parameter '{first._source.name_of(first)}' rests on storage; assign to parameter.data in the "
                             "place of set_()")
    found, copies = [], []
    values = _replace(args, found, copies), _replace(kwargs, found, copies)
    if torch.is_grad_enabled() and func not in _PASSED_BY_AUTOGRAD:
        for parameter in found:
            if parameter.requires_grad and torch._guards.TracingContext.try_get() is not None:
                raise InputError(f"parameter '{parameter._source.name_of(parameter)}' rests on storage, and torch.compile "
                                 "needs weights in pinned memory; set weights to 'pinned', or do without torch.compile")
            if parameter.requires_grad:
                raise InputError(f"parameter '{parameter._source.name_of(parameter)}' rests on storage and is used "
                                 "outside its module's forward pass with gradients enabled; use it under "
                                 "torch.no_grad(), or keep weights in pinned memory")
    if func in _DETACHES and isinstance(first, (StandIn, View)):
        # Each owner of a tied weight gets one memory.
        return first._source.copy_of(first, values[0][0])
    with torch._C.DisableTorchFunctionSubclass():
        result = func(*values[0], **values[1])
    if func in _ARRAYS and result.ctypes.data == values[0][0].data_ptr():
        result.flags.writeable = False
    if func in _CONVERSIONS and result is first and type(first) is Copy and first._is_state:
        return first._plain().clone()  # optimizers convert the state that they load, and then update it
    return _guarded(_with_views(_write_back(func, args, kwargs, values, result), found), copies)


def _guarded(result, copies):
    """Results that share memory with copies raise on writes, too."""
    if not copies:
        return result
    if type(result) in (list, tuple):
        return type(result)(_guarded(item, copies) for item in result)
    if type(result) is not torch.Tensor or result.requires_grad or result.layout != torch.strided:
        return result
    for copy in copies:
        with torch._C.DisableTorchFunctionSubclass():
            shares = result.untyped_storage()._cdata == copy.untyped_storage()._cdata
        if shares:
            return Copy.of(result, copy._sentence, copy._is_state)
    return result


def _with_views(result, found):
    """Results that share memory with a parameter's value write through: views in any type, and the value itself."""
    if isinstance(result, (list, tuple)) and type(result) in (list, tuple):
        return type(result)(_with_views(item, found) for item in result)
    if isinstance(result, (StandIn, View)) or not isinstance(result, torch.Tensor) or result.layout != torch.strided:
        return result
    for parameter in found:
        if result is parameter._source.read(parameter):
            return parameter
        base = parameter._source.base_of(parameter)
        with torch._C.DisableTorchFunctionSubclass():
            shares = result.untyped_storage()._cdata == base.untyped_storage()._cdata
        if shares:
            with torch._C.DisableTorchFunctionSubclass():
                view = torch.Tensor._make_subclass(View, result, False)
            view._source = _ViewOf(parameter, base, result)
            return view
    return result


def _replace(value, found, copies):
    """The arguments with true values in place of placeholders."""
    if isinstance(value, (StandIn, View)):
        found.append(value)
        return value._source.read(value)
    if isinstance(value, Copy):
        copies.append(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        replaced = [_replace(item, found, copies) for item in value]
        return type(value)(replaced) if type(value) in (list, tuple) else tuple(replaced)
    if isinstance(value, dict):
        return {key: _replace(item, found, copies) for key, item in value.items()}
    return value


def _written(func, args, kwargs, kinds):
    """Arguments of these kinds whose elements the function writes."""
    name = getattr(func, "__name__", "").split(".")[0]  # an operator's name has its overload
    in_place = name.endswith("_") and not name.endswith("__") or name in ("__setitem__", "__set__")
    in_place = in_place or name.startswith("__i") and name not in ("__index__", "__int__", "__invert__")
    first = args[0] if in_place and args else ()
    out = kwargs.get("out", ())
    return [item for value in (first, out)
            for item in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(item, kinds)]


def _write_back(func, args, kwargs, values, result):
    for parameter in _written(func, args, kwargs, (StandIn, View)):
        value = parameter._source.read(parameter)
        parameter._source.write(parameter, value)
        parameter._source.count(parameter)
        if result is value:
            result = parameter
    return result


class Values:
    """True values of placeholders: copies on the host, which live as long as somebody holds them."""

    def __init__(self, read, write, weight_of):
        self._read, self._write = read, write  # of (parameter, tensor)
        self._weight_of = weight_of            # of a parameter
        self._data = {}   # id of a parameter: weak references to placeholders of its data
        self._known = {}  # id of a parameter: (name, strides)
        self._alive = weakref.WeakValueDictionary()  # id of a parameter: its copy
        self.copies = {}    # id: weak reference, of those that the program has
        self._written = []  # (parameter, value) that has to go to storage

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

    def base_of(self, parameter):
        return self.read(parameter)

    def alive(self, parameter):
        return self._alive.get(id(parameter))

    def check_at_home(self, parameter):
        if self._weight_of(parameter).is_in:
            raise InputError(f"parameter '{self.name_of(parameter)}', which rests on storage, is in its module's pass; use the "
                             "parameter there and no data or views of it that are older")

    def is_held(self, parameter):
        """Whether the program has data of the parameter, which show the bytes at home."""
        alive = [data for data in self._data.get(id(parameter), ()) if data() is not None]
        self._data[id(parameter)] = alive
        return bool(alive)

    def assign(self, parameter, value):
        """parameter.data = value. The two share memory from now on."""
        source = getattr(value, "_source", None)
        alive = self._alive.get(id(parameter))
        with torch._C.DisableTorchFunctionSubclass():
            is_copy = alive is not None and value.untyped_storage()._cdata == alive.untyped_storage()._cdata
        if value is parameter or is_copy and value.stride() == parameter.stride() or isinstance(source, _DataOf) and source.parameter is parameter:
            self._weight_of(parameter).assign(None)
        elif isinstance(value, (StandIn, View, Copy)) or is_copy:
            raise InputError(f"parameter '{self.name_of(parameter)}' would share the memory of a weight on storage or of a "
                             "part of it; assign a clone()")
        else:
            self._check_kind(parameter, value)
            self._weight_of(parameter).assign(value)

    def replace(self, parameter, value):
        """The bytes at home become those of another tensor, and copies keep theirs."""
        self._alive.pop(id(parameter), None)
        self.write(parameter, value)

    def _check_kind(self, parameter, value):
        name, _ = self._known[id(parameter)]
        if value.dtype != parameter.dtype or value.shape != parameter.shape or value.device.type != "cpu":
            raise InputError(f"parameter '{name}' rests on storage as {parameter.dtype} of shape {tuple(parameter.shape)} "
                             f"and cannot become {value.dtype} of shape {tuple(value.shape)} on {value.device}; call "
                             "sluice.restore(model) before you convert or move it")

    def write(self, parameter, value):
        self._check_kind(parameter, value)
        _, strides = self._known[id(parameter)]
        with torch._C.DisableTorchFunctionSubclass():
            own = torch.empty_strided(parameter.size(), strides, dtype=parameter.dtype)
            own.copy_(value)
            self._write(parameter, own)
            known = self._alive.get(id(parameter))
            if known is not None and known is not value:
                known.data.copy_(own)

    def count(self, parameter):
        """A write that torch would count."""
        torch.autograd.graph.increment_version(parameter)

    def data_of(self, parameter):
        """Stands for parameter.data: without gradients, and a write in place goes to the parameter."""
        with torch._C.DisableTorchFunctionSubclass():
            data = torch.Tensor._make_subclass(StandIn, parameter.data, False)
        data._source = _DataOf(self, parameter)
        self._data.setdefault(id(parameter), []).append(weakref.ref(data))
        return data

    def copy_of(self, parameter, value, base=None):
        copy = Copy.of_parameter(value, value if base is None else base, parameter, self)
        self.copies[id(copy)] = weakref.ref(copy)
        return copy

    def take_written(self, parameter, value):
        """One that an update has followed is the program's own."""
        if self._alive.get(id(parameter)) is value:
            self._written.append((parameter, value))

    def settle(self):
        """Writes to copies by code that Python does not see reach storage."""
        for known in list(self.copies.values()):
            copy = known()
            if copy is not None:
                copy.settle()
        while self._written:
            self.write(*self._written.pop())

    def forget(self):
        """The values on storage have changed."""
        self._alive.clear()


class _DataOf:
    """The source of parameter.data: that of the parameter. Torch does not count writes to it."""

    def __init__(self, values, parameter):
        self._values, self.parameter = values, parameter

    def name_of(self, data):
        return self._values.name_of(self.parameter)

    def read(self, data):
        self._values.check_at_home(self.parameter)
        return self._values.read(self.parameter)

    base_of = read

    def check_at_home(self, data):
        self._values.check_at_home(self.parameter)

    def copy_of(self, data, value):
        return self._values.copy_of(self.parameter, value)

    def alive(self, data):
        return self._values.alive(self.parameter)

    def write(self, data, value):
        self._values.check_at_home(self.parameter)
        self._values.write(self.parameter, value)

    def assign(self, data, value):
        if data is not value:
            raise InputError(f"parameter '{self.name_of(data)}' rests on storage; assign to parameter.data, not to data of it "
                             "that you hold")

    def count(self, data):
        pass

    def data_of(self, data):
        return data


class _ViewOf:
    """The source of a view: a part of the parameter's value."""

    def __init__(self, of, base, view):
        """of: a placeholder or a view, which this is a view of."""
        outer = of._source
        self._of = outer._of if isinstance(outer, _ViewOf) else of
        self._values = outer._values if isinstance(outer, _ViewOf) else outer
        self._base, self._view = base, view

    def _source(self):
        source = self._values
        if source.alive(self._of) is not self._base:
            raise InputError(f"a view of parameter '{self.name_of(None)}', which rests on storage, is older than an update "
                             "of it; take the view anew")
        source.check_at_home(self._of)
        return source

    def name_of(self, view):
        return self._values.name_of(self._of)

    def read(self, view):
        self._source()
        return self._view

    def base_of(self, view):
        return self._base

    def copy_of(self, view, value):
        source, parameter = self._source(), self._of
        if isinstance(source, _DataOf):
            source, parameter = source._values, source.parameter
        return source.copy_of(parameter, value, self._base)

    def alive(self, view):
        return self._base

    def write(self, view, value):
        source = self._source()
        if value is not self._view:  # it was written in place otherwise
            self._view.copy_(value)
        source.write(self._of, self._base)

    def assign(self, view, value):
        if view is not value:
            raise InputError(f"a view of parameter '{self.name_of(view)}', which rests on storage, cannot get other data")

    def count(self, view):
        self._values.count(self._of)

    def data_of(self, view):
        return _with_views(self._view.view_as(self._view), [view])
