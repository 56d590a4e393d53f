"""The passes of an offloaded model: hooks that bring a unit's weights to the device and let them go.

In a pass, the data of a unit's parameters are its windows. A window never moves, so a tensor that autograd saves of it
is true again whenever the unit is there. Two things bring it in the backward pass: the node of the unit's output
is about to run, or a node reads a tensor that was saved over a window (_saved.py).

Autograd runs nodes in the reverse order of their making. A call of a unit is an interval of the forward pass, which
has ended in backward when an earlier call begins there. Recomputation by torch.utils.checkpoint is a forward pass
inside backward, and so is the code of a custom Function that runs modules. A backward pass around it still holds the
unit that it was at. If memory is short, that unit leaves and comes back before the outer pass goes on. So no nesting
of recomputation needs more windows than the modules that are inside each other, which offload() has counted.
"""
import collections
import sys
import threading
import weakref

import torch

from ._library import InputError, OutOfMemory
from ._saved import SavedTensors, tensors_of, with_copies
from ._units import window_bytes

_graph_task = torch._C._current_graph_task_id  # -1 outside of backward


class _Idle:
    """The hook in a copy or a pickle of an offloaded model: the copy is plain."""

    def __call__(self, *arguments):
        return None


class Hook:
    """A hook of one module. Copies of the module get an idle one."""

    def __init__(self, function, module, owner):
        self._function, self._module_id, self.owner = function, id(module), owner

    def __call__(self, module, *arguments):
        if getattr(module, "_is_replica", False):
            raise InputError("torch.nn.DataParallel copies an offloaded model's modules; train on one device")
        return self._function(module, *arguments) if id(module) == self._module_id else None

    def __reduce__(self):
        return _Idle, ()


class _Uncounted(collections.OrderedDict):
    """A module's hooks. Its length is the number of those that are not ours."""

    def __len__(self):
        return sum(not isinstance(hook, Hook) for hook in self.values())

    def __bool__(self):
        return any(True for _ in self)


def _is_plain_embedding(module):
    """Whether the module's backward pass surely does not read its weight. A hook may compute with the weight, as the
    older spectral_norm() does."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return (type(module) is torch.nn.Embedding and "forward" not in module.__dict__
            and all(isinstance(hook, Hook) for hook in hooks))


class _Call:
    """A forward pass of one unit: an interval of the count of such events."""

    def __init__(self, unit, begin):
        self.unit, self.begin, self.end = unit, begin, None


class _Held:
    """Calls whose units a backward pass holds."""

    def __init__(self):
        self.calls, self.is_open = [], True
        self.suspended = []  # (_Held, call) of backward passes around it


class _Entry:
    """A module in its forward pass."""

    def __init__(self, module):
        self.module, self.calls, self.saved = module, [], None
        self.suspended = []  # (_Held, call) of backward passes around it
        self.thread = threading.get_ident()
        self._hooks = None

    def hide_hooks(self):
        """TransformerEncoderLayer counts hooks, and takes another path with other last bits if there are some. Not in
        compiled code, which takes the length for the truth value."""
        module = self.module
        if torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None:
            return
        self._hooks = module._forward_pre_hooks, module._forward_hooks
        module._forward_pre_hooks, module._forward_hooks = (_Uncounted(hooks) for hooks in self._hooks)

    def show_hooks(self):
        if self._hooks is not None:
            self.module._forward_pre_hooks, self.module._forward_hooks = self._hooks
            self._hooks = None

    def is_live(self, times=1):
        """Whether its call is on the thread's stack still: an interrupt leaves it without a sign. Names of compiled
        frames have that of the function in them."""
        frame = sys._current_frames().get(self.thread)
        while frame is not None and times > 0:
            times -= "_call_impl" in frame.f_code.co_name and frame.f_locals.get("self", self.module) is self.module
            frame = frame.f_back
        return times == 0


class _Task:
    """A backward pass. Autograd drops it at the end, and after an exception, too."""

    def __init__(self, passes, number):
        self._passes, self._number = passes, number

    def __call__(self):
        self._passes._release_task(self._number)

    def __del__(self):
        self._passes._release_task(self._number)


class Passes:
    """The hooks of one model. found, units: Unit and OffloadedUnit by number in the pager. Graphs hold this object, so
    only hooks and passes in progress hold modules."""

    def __init__(self, model, found, units, pager, owner):
        self._pager, self._owner, self._units = pager, owner, units
        self.model = weakref.ref(model)
        self._clock = 0
        self._depth = 0           # calls of the whole model in progress
        self.is_stale = False     # weights were written since the pass began
        self._stack = []          # entries, the innermost last
        self._inside = {}         # unit: its uses in progress, forward and backward
        self._held = {}           # graph task: _Held
        self._window_bytes = [window_bytes(unit) for unit in found]
        self._handles = []
        of_module = {}
        for number, unit in enumerate(found):
            for module in unit.modules:
                of_module.setdefault(module, []).append(number)
        of_module.setdefault(model, [])
        for module, numbers in of_module.items():
            self._add_hooks(module, numbers, [(units[number], found[number].places) for number in numbers])
        self._guard(model)

    def _add_hooks(self, module, numbers, places):
        spans = tuple(self._units[number].span for number in numbers)

        def enter(module, arguments):
            for unit, of_unit in places:
                unit.check_places(of_unit)
            self._enter(module, numbers, spans)

        def leave(module, arguments, output=None):
            return self._leave(module, output, arguments, spans, bool(numbers) and not _is_plain_embedding(module))
        self._handles += [
            module.register_forward_pre_hook(Hook(enter, module, self._owner), prepend=True),
            module.register_forward_hook(Hook(leave, module, self._owner), always_call=True)]

    def _guard(self, model):
        """Hooks do not see a KeyboardInterrupt; this does. Copies of the module do not get it."""
        before, reference = model._compiled_call_impl, weakref.ref(model)

        def call(*arguments, **keywords):
            size = len(self._stack)
            self._depth += 1
            try:
                return (before or reference()._call_impl)(*arguments, **keywords)
            except BaseException:
                self._unwind(size, threading.get_ident())
                raise
            finally:
                self._depth -= 1

        def unguard():
            model = reference()
            if model is not None and model._compiled_call_impl is call:
                model._compiled_call_impl = before
        model._compiled_call_impl = call
        self._unguard = unguard

    def remove(self):
        """The model is plain again. Graphs that were made before cannot run any more."""
        for task in list(self._held):
            self._release_task(task)
        self._unwind(0)
        self._unguard()
        for handle in self._handles:
            handle.remove()
        self._pager = None

    def _unwind(self, size, thread=None):
        while len(self._stack) > size and thread in (None, self._stack[-1].thread):
            self._end_entry(self._stack.pop())

    def _end_entry(self, entry):
        entry.show_hooks()
        if entry.saved is not None:
            entry.saved.leave()
        for call in reversed(entry.calls):
            self._clock += 1
            call.end = self._clock
            self._end_use(call.unit)
        self._resume(entry.suspended)

    def _check_stack(self, module):
        """Leftovers of an interrupted pass go; another thread's pass does not."""
        last = self._stack[-1]
        if last.thread != threading.get_ident() and last.is_live():
            raise InputError("another thread is in its forward pass of this model; an offloaded model takes one thread "
                             "at a time")
        again = sum(entry.module is module for entry in self._stack)
        if again or self._depth == 0:
            if not self._stack[0].is_live() or not _Entry(module).is_live(again + 1):
                self._unwind(0)

    def _enter(self, module, numbers, spans):
        if _graph_task() == -1:
            if self._stack:
                self._check_stack(module)
            if not self._stack:
                self._owner.look()
                self._begin_pass()
        entry = _Entry(module)
        self._stack.append(entry)
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            entry.hide_hooks()
        for number in numbers:
            self._bring(number, self._held.values(), entry.suspended)
            self._clock += 1
            entry.calls.append(_Call(number, self._clock))
            self._begin_use(number)
        if spans:
            entry.saved = SavedTensors(self._units, self._owner.weights, entry.calls, self._begin_saved)

    def _begin_pass(self):
        self.is_stale = False
        self._pager.begin_pass()

    def _acquire(self, number):
        if self.is_stale:
            self._begin_pass()
        self._pager.acquire(number)

    def _bring(self, number, around, suspended):
        """Acquires a unit. If windows are short, the units of `around`, backward passes in which this recomputation
        or backward pass runs, leave theirs until it ends: none of their code runs meanwhile."""
        try:
            return self._acquire(number)
        except OutOfMemory as error:
            for held in around:
                for call in held.calls[:]:
                    held.calls.remove(call)
                    self._end_use(call.unit)
                    suspended.append((held, call))
            try:
                return self._acquire(number)
            except OutOfMemory:
                raise self._too_small(number, error) from None

    def _too_small(self, number, error):
        used = dict.fromkeys([*self._inside, number])
        names = ", ".join(f"'{self._units[unit].name}'" for unit in used)
        needed = sum(self._window_bytes[unit] for unit in used)
        refused = OutOfMemory(f"the units {names} are in use at once, as when a module calls another that is not inside it, "
                              f"and their windows have {needed} bytes; set device to {needed} or more")
        refused.requested_bytes, refused.available_bytes, refused.tier = (
            error.requested_bytes, error.available_bytes, error.tier)
        return refused

    def _resume(self, suspended):
        """The windows that _bring() has taken, before code runs that may read them."""
        while suspended:
            held, call = suspended.pop()
            if held.is_open:
                self._acquire(call.unit)
                held.calls.append(call)
                self._begin_use(call.unit)

    def _begin_use(self, number):
        self._inside[number] = self._inside.get(number, 0) + 1
        if self._inside[number] == 1:
            self._units[number].put_in()

    def _end_use(self, number):
        self._inside[number] -= 1
        if self._inside[number] == 0:
            del self._inside[number]
            try:
                self.is_stale |= self._units[number].take_out()
            finally:
                self._pager.release(number)
            return
        self._pager.release(number)

    def _leave(self, module, output, arguments, spans, reads):
        # An exception may come before this module's own entry.
        entry = self._stack[-1] if self._stack else None
        if entry is None or entry.module is not module or entry.thread != threading.get_ident():
            return None
        self._stack.pop()
        try:
            copied = with_copies(output, spans, type(module).__name__)
            # Frames of an exception hold tensors. A recomputation for hooks around it, as of checkpoint(use_reentrant=False),
            # hands all that is saved to them; the forward pass before it was looked at.
            if output is not None and not (_graph_task() != -1 and entry.saved is not None and entry.saved.has_outer):
                self._check_kept(entry, type(module).__name__, output)
        finally:
            self._end_entry(entry)
        if reads and torch.is_grad_enabled():
            self._watch_outputs(entry.calls, output if copied is None else copied, arguments)
        return copied

    def _check_kept(self, entry, name, output):
        known = None
        for call in entry.calls:
            if self._inside[call.unit] == 1:
                known = list(tensors_of(output)) if known is None else known
                self._units[call.unit].check_kept(name, known)

    def _watch_outputs(self, calls, output, arguments):
        inputs = {id(tensor) for tensor in tensors_of(arguments)}
        nodes = {tensor.grad_fn for tensor in tensors_of(output) if id(tensor) not in inputs}
        for node in nodes:
            if node is not None:
                node.register_prehook(lambda gradients: self._begin_backward(calls))

    def _begin_saved(self, calls):
        if calls[0].end is None:
            return  # a backward pass inside the forward pass: the unit is there
        if _graph_task() == -1:
            raise InputError("a tensor that autograd has saved of an offloaded weight is read outside a backward pass; "
                             "its bytes may have left")
        self._begin_backward(calls)

    def _begin_backward(self, calls):
        if self._pager is None:
            raise InputError("the model was restored between this graph's forward and backward passes")
        if torch.is_grad_enabled():
            raise InputError("a backward pass with create_graph=True through an offloaded model would read weights that "
                             "have left; call sluice.restore(model) for second derivatives")
        task = _graph_task()
        held = self._held.get(task)
        if held is None:
            torch.autograd.Variable._execution_engine.queue_callback(_Task(self, task))
            held = self._held[task] = _Held()
        for call in calls:
            if call in held.calls or call.end is None:
                continue
            for other in [other for other in held.calls if other.begin >= call.end]:
                held.calls.remove(other)
                self._end_use(other.unit)
            self._bring(call.unit, [other for other in self._held.values() if other is not held], held.suspended)
            held.calls.append(call)
            self._begin_use(call.unit)

    def _release_task(self, task):
        held = self._held.pop(task, None)
        if held is None:
            return
        held.is_open = False
        for call in held.calls:
            self._end_use(call.unit)
        self._resume(held.suspended)
