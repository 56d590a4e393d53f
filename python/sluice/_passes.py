"""The passes of an offloaded model: hooks that bring a unit's weights to the device and let them go.

In a forward pass, hooks put tensors over the unit's windows in the place of its parameters. These tensors are
leaves of autograd's graph; it saves views of the windows, and a unit's window never moves. So
in the backward pass it is enough that the unit is in its window again while its nodes run. The tensors are in
place then, too: a module that recomputes its own forward() calls no hooks.

Autograd runs nodes in the reverse order of their making. A call of a unit is an interval of the forward pass;
it begins in backward when the node of its output is about to run, and has ended when the node of an output made
before the call is about to run. Recomputation by torch.utils.checkpoint is a forward pass inside backward.
"""
import torch

from ._library import InputError

_graph_task = torch._C._current_graph_task_id  # -1 outside of backward


class _Idle:
    """The hook in a copy or a pickle of an offloaded model: the copy is plain."""

    def __call__(self, *arguments):
        return None


class _Hook:
    """A hook of one module. Copies of the module get an idle one."""

    def __init__(self, function, module):
        self._function, self._module_id = function, id(module)

    def __call__(self, module, *arguments):
        if getattr(module, "_is_replica", False):
            raise InputError("torch.nn.DataParallel copies an offloaded model's modules; train on one device")
        if id(module) == self._module_id:
            self._function(module, *arguments)

    def __reduce__(self):
        return _Idle, ()


class _Call:
    """A forward pass of one unit: an interval of the count of such events."""

    def __init__(self, unit, begin):
        self.unit, self.begin, self.end = unit, begin, None


class Passes:
    """The hooks of one model. `units`: by number in the pager; each has name, places and modules."""

    def __init__(self, model, units, pager, prepare):
        self._pager, self._prepare = pager, prepare  # prepare(): before each pass, of weights that were replaced
        self._units = units
        self._clock = 0
        self._stack = []          # (module, [call]) of modules in their forward pass
        self._inside = {}         # unit: its uses in progress, forward and backward
        self._held = {}           # graph task: calls in their backward pass
        self._handles = []
        of_module = {}
        for number, unit in enumerate(units):
            for module in unit.modules:
                of_module.setdefault(module, []).append(number)
        of_module.setdefault(model, [])
        for module, numbers in of_module.items():
            self._add_hooks(module, numbers)

    def _add_hooks(self, module, numbers):
        # The embedding's backward pass does not read its weight.
        reads = type(module) is not torch.nn.Embedding

        def enter(module, arguments):
            self._enter(module, numbers)

        def leave(module, arguments, output=None):
            self._leave(module, output, arguments, reads)
        self._handles += [
            module.register_forward_pre_hook(_Hook(enter, module), prepend=True),
            module.register_forward_hook(_Hook(leave, module), always_call=True)]

    def remove(self):
        self.reset()
        for handle in self._handles:
            handle.remove()

    def reset(self):
        """After an exception that hooks did not see: all units go."""
        for task in list(self._held):
            self._release_task(task)
        for _, calls in self._stack:
            for call in calls:
                self._end_use(call.unit)
        self._stack.clear()

    def _enter(self, module, numbers):
        if _graph_task() == -1:
            if any(entered is module for entered, _ in self._stack):
                self.reset()
            if not self._stack:
                for task in list(self._held):  # of a backward pass that raised
                    self._release_task(task)
                self._prepare()
                self._pager.begin_pass()
        calls = []
        self._stack.append((module, calls))
        for number in numbers:
            self._pager.acquire(number)
            self._clock += 1
            calls.append(_Call(number, self._clock))
            self._begin_use(number)

    def _begin_use(self, number):
        self._inside[number] = self._inside.get(number, 0) + 1
        if self._inside[number] == 1:
            self._put_in(number)

    def _end_use(self, number):
        self._inside[number] -= 1
        if self._inside[number] == 0:
            del self._inside[number]
            self._take_out(number)
        self._pager.release(number)

    def _put_in(self, number):
        unit = self._units[number]
        for module, key, parameter in unit.places:
            if module._parameters.get(key) is not parameter:
                raise InputError(f"parameter '{key}' of unit '{unit.name}' was replaced after offload(); write into it, "
                                 "or call sluice.restore(model) first")
        for parameter, window in unit.windows.items():
            if window.requires_grad != parameter.requires_grad:
                window.requires_grad_(parameter.requires_grad)
                unit.watch(parameter, window)
        for module, key, parameter in unit.places:
            module._parameters[key] = unit.windows[parameter]

    def _take_out(self, number):
        unit = self._units[number]
        for module, key, parameter in unit.places:
            if module._parameters.get(key) is unit.windows[parameter]:
                module._parameters[key] = parameter

    def _leave(self, module, output, arguments, reads):
        # An exception may come before this module's own entry.
        if not self._stack or self._stack[-1][0] is not module:
            return
        _, calls = self._stack.pop()
        written = None
        for call in reversed(calls):
            written = written or self._written(call.unit)
            self._end_use(call.unit)
            self._clock += 1
            call.end = self._clock
        if written:
            raise InputError(f"the forward pass of '{type(module).__name__}' writes into a parameter of unit '{written}'; "
                             "such a weight cannot be offloaded")
        if reads and calls and torch.is_grad_enabled():
            self._watch_outputs(calls, output, arguments)

    def _written(self, number):
        """The unit's name if a window has been written by torch since the last look."""
        unit = self._units[number]
        for window in unit.windows.values():
            if window._version != unit.versions.setdefault(window, window._version):
                unit.versions[window] = window._version
                return unit.name
        return None

    def _watch_outputs(self, calls, output, arguments):
        inputs = {id(tensor) for tensor in _tensors(arguments)}
        nodes = {tensor.grad_fn for tensor in _tensors(output) if id(tensor) not in inputs}
        for node in nodes:
            if node is not None:
                node.register_prehook(lambda gradients: self._begin_backward(calls))

    def _begin_backward(self, calls):
        if torch.is_grad_enabled():
            raise InputError("a backward pass with create_graph=True through an offloaded model would read weights that "
                             "have left; call sluice.restore(model) for second derivatives")
        task = _graph_task()
        held = self._held.get(task)
        if held is None:
            held = self._held[task] = []
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._release_task(task))
        for call in calls:
            if call in held:
                continue
            for other in [other for other in held if other.begin >= call.end]:
                held.remove(other)
                self._end_use(other.unit)
            self._pager.acquire(call.unit)
            held.append(call)
            self._begin_use(call.unit)

    def _release_task(self, task):
        for call in self._held.pop(task, ()):
            self._end_use(call.unit)


def _tensors(value):
    """All tensors in nested containers, among them the outputs of transformers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__dict__") and not isinstance(value, (torch.nn.Module, type)):
        for item in vars(value).values():
            if isinstance(item, (torch.Tensor, list, tuple, dict)):
                yield from _tensors(item)
