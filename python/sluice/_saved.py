"""Tensors over windows that leave a module's pass: saved by autograd, or handed out by the module.

A unit's backward pass may begin anywhere: at a loss that a module keeps as an attribute, at an activation that a hook
has caught, in an object that nobody can look into. All of these read weights through the tensors that autograd has
saved. So hooks mark the saved tensors that lie in a window, and reading one brings its unit.
"""
import torch

from ._library import InputError

_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_are_enabled = torch._C._autograd._saved_tensors_hooks_is_enabled
_MODIFIED = ("one of the variables needed for gradient computation has been modified by an inplace operation: "
             "[{kind} {shape}] is at version {found}; expected version {expected} instead")


class SavedTensors:
    """The hooks of one module's forward pass. Hooks of the program around it are called, too: torch applies the
    innermost pair only. It checks versions of saved tensors only where there are no hooks, so they do."""

    def __init__(self, units, weights, calls, begin):
        self._context, self.has_outer = None, False
        parameters = {id(parameter) for call in calls for parameter in units[call.unit].parameters.values()}
        spans = [units[call.unit].span for call in calls]
        if not _are_enabled():
            if torch.is_grad_enabled():
                raise InputError("torch.func's transforms and disable_saved_tensors_hooks() do not reach offloaded "
                                 "weights with gradients enabled; use torch.no_grad(), or call sluice.restore(model) first")
            return
        outer = _top_hooks(False)
        self.has_outer = outer is not None

        def pack(tensor):
            try:
                address = tensor.data_ptr()
            except RuntimeError:  # a tensor without memory
                address = 0
            weight, place = None, None
            is_ours = id(tensor) in parameters
            if not is_ours and any(low <= address < high for low, high in spans):
                weight = weights.at(address)
                place = weight.note_saved(tensor)
            if outer is not None:
                return outer[0](tensor), None, is_ours, weight, place
            return tensor, tensor._version, is_ours, weight, place

        def unpack(packed):
            value, version, is_ours, weight, place = packed
            if is_ours or weight is not None:
                begin(calls)
            if version is None:
                return outer[1](value)
            if value._version != version:
                raise RuntimeError(_MODIFIED.format(kind=value.type(), shape=list(value.shape), found=value._version,
                                                    expected=version))
            return value if weight is None else weight.true_view(value, place)
        self._pack = pack
        self._context = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
        self._context.__enter__()

    def leave(self):
        if self._context is None:
            return
        top = _top_hooks(False)
        if top is not None and top[0] is self._pack:  # not so after an interrupt that a context has seen first
            self._context.__exit__()
        self._context = None


def tensors_of(value):
    """All tensors in nested containers, among them the outputs of transformers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from tensors_of(item)
    elif hasattr(value, "__dict__") and not isinstance(value, (torch.nn.Module, type)):
        for item in vars(value).values():
            if isinstance(item, (torch.Tensor, list, tuple, dict)):
                yield from tensors_of(item)


def _is_window(tensor, spans):
    """A parameter itself is none: its data are at home again after the pass."""
    if isinstance(tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return False
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        return False
    return any(low <= address < high for low, high in spans)


def with_copies(output, spans, name):
    """The output with copies in the place of views of windows, which are true in the pass only. None: there are
    none. A copy has the values, strides and gradient of the view."""
    if not spans or not any(_is_window(tensor, spans) for tensor in tensors_of(output)):
        return None
    copied = _copied(output, spans)
    if any(_is_window(tensor, spans) for tensor in tensors_of(copied)):
        raise InputError(f"the forward pass of '{name}' returns a view of its weight in an object, and the view leaves with "
                         "the pass; return view.clone()")
    return copied


class _CopyOfView(torch.autograd.Function):
    """Clones the memory from the view's first element to its last, so that strides with gaps or of 0 stay."""

    @staticmethod
    def forward(context, view):
        count = 1 + sum((size - 1) * stride for size, stride in zip(view.size(), view.stride())) if view.numel() else 0
        memory = view.as_strided((count,), (1,)).clone()
        return view.new_empty(0).set_(memory.untyped_storage(), 0, view.size(), view.stride())

    @staticmethod
    def backward(context, gradient):
        return gradient


def _copied(value, spans):
    if isinstance(value, torch.Tensor):
        return _CopyOfView.apply(value) if _is_window(value, spans) else value
    if type(value) in (list, tuple):
        return type(value)(_copied(item, spans) for item in value)
    if type(value) is dict:
        return {key: _copied(item, spans) for key, item in value.items()}
    return value
