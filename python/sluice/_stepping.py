"""PyTorch's own optimizer, stepped unit by unit over weights and state that Sluice stages.

An optimizer that updates each parameter from its own gradient and state gives the same bits whether it sees all
parameters at once or a few at a time. So step() calls the optimizer's own code once for each unit. State with the
parameter's shape lies in the pager; steps and other small or odd-shaped state stay where PyTorch puts them.
"""
import copy
import copyreg
import inspect
import weakref
from collections import defaultdict

import torch

from ._library import InputError
from ._memory import bytes_of, is_dense, tensor_at
from ._stored_state import StoredState

# Each of these updates a parameter from nothing but its own gradient and state.
SEPARABLE = ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam",
             "RMSprop", "Rprop", "SGD")
_WAY_OUT = "; weights alone work with any optimizer: sluice.offload(model)"
_STEPPER = "_sluice_stepper"  # the optimizer's attribute, which its copies and pickles do not have


class Entry:
    """One kind of state of one parameter in a pager."""

    def __init__(self, dtype):
        self.dtype, self.pager, self.number, self.tensor = dtype, None, None, None

    def is_stored(self):
        return self.pager.home(self.number) is None

    def read(self):
        value = torch.empty_strided(self.tensor.size(), self.tensor.stride(), dtype=self.dtype)
        self.pager.read(self.number, value.data_ptr(), bytes_of(value))
        return value

    def write(self, value):
        own = torch.empty_strided(self.tensor.size(), self.tensor.stride(), dtype=self.dtype).copy_(value)
        self.pager.write(self.number, own.data_ptr(), bytes_of(own))


def plain_class(optimizer):
    """The optimizer's class without ours."""
    stepper = optimizer.__dict__.get(_STEPPER)
    return type(optimizer) if stepper is None else stepper.plain_class


def own_step(kind):
    """The step function of an optimizer's class, without the hooks that PyTorch puts around it."""
    step = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def unwrapped(optimizer):
    """The optimizer in the wrappers of accelerate, Lightning and the like."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def check_optimizer(optimizer):
    """Raises InputError for an optimizer that cannot be stepped unit by unit."""
    name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    if _STEPPER in optimizer.__dict__:
        raise InputError(f"this {type(optimizer).__name__} steps another offloaded model; make an optimizer for each model, "
                         "or offload one module that holds both models" + _WAY_OUT)
    for known in SEPARABLE:
        kind = getattr(torch.optim, known, None)
        if isinstance(optimizer, kind or ()) and inspect.unwrap(type(optimizer).step) is inspect.unwrap(kind.step):
            break
    else:
        raise InputError(f"the optimizer {name} is not known to update each parameter from its own gradient and state; "
                         f"offload() takes these classes of torch.optim: {', '.join(SEPARABLE)}" + _WAY_OUT)
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise InputError("an optimizer with differentiable=True cannot be offloaded" + _WAY_OUT)
    step = optimizer.__dict__.get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        raise InputError("the optimizer's step() was replaced; offload() before you wrap it" + _WAY_OUT)


def _probe(optimizer, group, dtype, dimensions):
    """{key: dtype} of the state with a parameter's shape, from one step on a small parameter."""
    small = torch.nn.Parameter(torch.zeros([3 + d for d in range(dimensions)], dtype=dtype))
    small.grad = torch.zeros_like(small)
    kind = plain_class(optimizer)
    trial = kind.__new__(kind)
    trial.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key not in ("step", _STEPPER)})
    trial.state, trial.param_groups = defaultdict(dict), [{**group, "params": [small]}]
    own_step(kind)(trial)
    return _shaped(trial.state[small], small)


def _shaped(state, parameter):
    return {key: value.dtype for key, value in state.items()
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape}


def planned_state(optimizer, parameters):
    """{parameter: {key: Entry}} of the state that a pager will hold, of those among these parameters."""
    planned, probes = {}, {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter not in parameters or parameter.dim() == 0 or not parameter.requires_grad:
                continue
            found = _shaped(optimizer.state[parameter], parameter) if parameter in optimizer.state else {}
            if not found:
                key = number, parameter.dtype, parameter.dim()
                if key not in probes:
                    probes[key] = _probe(optimizer, group, parameter.dtype, parameter.dim())
                found = probes[key]
            planned[parameter] = {name: Entry(dtype) for name, dtype in found.items()}
    return planned


class Stepper:
    """The optimizer of an offloaded model."""

    def __init__(self, optimizer, offloaded, planned):
        self.optimizer, self.offloaded, self.pager, self.planned = optimizer, offloaded, offloaded.pager, {}
        self.plain_class = type(optimizer)
        self.plain_step = own_step(self.plain_class)
        self._known = set()  # parameters with state, at the last look
        self._away = {}  # parameter: its entries that rest on storage
        self._take(planned)
        self._change_class()
        self._hooks = [optimizer.register_load_state_dict_post_hook(lambda optimizer: self._adopt_all()),
                       optimizer.register_state_dict_pre_hook(lambda optimizer: self._bring_all(None)),
                       optimizer.register_state_dict_post_hook(lambda optimizer, states: self._send_all())]
        self._adopt_all()

    def _take(self, planned):
        """Entries that are in a sealed pager."""
        self.planned.update(planned)
        for parameter, entries in planned.items():
            like = self.offloaded.weights.of(parameter).staged
            for key, entry in entries.items():
                entry.tensor = tensor_at(entry.pager.staged(entry.number), like, entry.pager, entry.dtype)
                if entry.is_stored():
                    self._away.setdefault(parameter, {})[key] = entry

    def _plan_late(self):
        """State of parameters that offload() did not see with this optimizer, of a later group or unfrozen, gets a place
        within the budgets before it is made."""
        late = planned_state(self.optimizer, {
            parameter for group in self.optimizer.param_groups for parameter in group["params"]
            if parameter.grad is not None and parameter in self.offloaded.unit_of and parameter not in self.planned})
        if any(late.values()):
            self.offloaded.add_late_state(late)
        self._take(late)
        for parameter, entries in late.items():
            self._adopt_at_rest(parameter, entries)

    def _change_class(self):
        """A subclass of the same name has the streamed step; its instances are the optimizer's class still."""
        plain = self.plain_class

        def step(optimizer, closure=None):
            stepper = optimizer.__dict__.get(_STEPPER)
            return stepper.step(closure) if stepper is not None else plain.step(optimizer, closure)
        def reduce(optimizer, protocol):
            """Copies and pickles are plain, with all state."""
            stepper = optimizer.__dict__.get(_STEPPER)
            if stepper is not None:
                stepper._bring_all(Entry.read)
            state = {**optimizer.__getstate__(), "state": copy.copy(optimizer.state)}
            if stepper is not None:
                stepper._send_all()
            return copyreg._reconstructor, (plain, object, None), state  # no name of ours is in a pickle
        step = torch.optim.Optimizer.profile_hook_step(step)
        step.hooked = True
        self.optimizer.__class__ = type(plain.__name__, (plain,), {
            "step": step, "__reduce_ex__": reduce, "__module__": plain.__module__})
        self._rewrap()
        self.optimizer.__dict__[_STEPPER] = self

    def _rewrap(self):
        """A learning rate schedule that was made before has wrapped the former step()."""
        if self.optimizer.__dict__.pop("step", None) is None:
            return
        optimizer = weakref.ref(self.optimizer)

        def step(*arguments, **keywords):
            optimizer()._opt_called = True
            return type(optimizer()).step(optimizer(), *arguments, **keywords)
        step._wrapped_by_lr_sched = True
        self.optimizer.step = step

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        optimizer = self.optimizer
        groups, lists = optimizer.param_groups, [group["params"] for group in optimizer.param_groups]
        if any(type(g) is torch.Tensor and g.is_sparse for ps in lists for g in (p.grad for p in ps)):
            raise InputError("a gradient is sparse; offload() takes dense gradients")
        self._plan_late()
        self.offloaded.look()
        self.offloaded.passes.is_stale = True
        try:
            for number, following, members in self._units_to_step(lists):
                self._step_unit(number, following, groups, lists, members)
            self._step_members(groups, lists, lambda parameter: parameter not in self.offloaded.unit_of)
        finally:
            optimizer.param_groups = groups
            for group, parameters in zip(groups, lists):
                group["params"] = parameters
            self.offloaded.values.forget()
        self._order_states(lists)
        return loss

    def _order_states(self, lists):
        """State that this step has made comes after the rest, in the order of the groups: state_dict() shows torch's
        order, in which a parameter stands when it got its first gradient."""
        state = self.optimizer.state
        made = {parameter for parameter in state if parameter not in self._known}
        if not made:
            return
        entries = {parameter: value for parameter, value in state.items() if parameter not in made}
        entries.update((parameter, state[parameter]) for parameters in lists for parameter in parameters
                       if parameter in made)
        state.clear()
        state.update(entries)
        self._known = set(state)

    def _units_to_step(self, lists):
        """(unit, the next one, its parameters with a gradient), in the pager's order."""
        of_unit = defaultdict(set)
        for parameter in (parameter for parameters in lists for parameter in parameters):
            if parameter.grad is not None and parameter in self.offloaded.unit_of:
                of_unit[self.offloaded.unit_of[parameter]].add(parameter)
        numbers = sorted(of_unit)
        return [(number, following, of_unit[number]) for number, following in zip(numbers, [*numbers[1:], None])]

    def _step_members(self, groups, lists, belongs):
        """The optimizer's own step, of some of its parameters."""
        chosen = []
        for group, parameters in zip(groups, lists):
            group["params"] = [parameter for parameter in parameters if belongs(parameter)]
            if group["params"]:
                chosen.append(group)
        self.optimizer.param_groups = chosen
        if chosen:
            self.plain_step(self.optimizer)

    def _step_unit(self, number, following, groups, lists, members):
        unit = self.offloaded.units[number]
        self.offloaded.stage(number, following)
        try:
            for parameter in members:
                unit.weights[parameter].stage()
                self._bring(parameter)
            self._step_members(groups, lists, members.__contains__)
        finally:
            for parameter in members:
                self._adopt(parameter)
                unit.weights[parameter].unstage()
            self.offloaded.unstage(number)

    def _bring(self, parameter):
        """The staged state, in the place of the one that is away."""
        state = self.optimizer.state[parameter] if parameter in self.optimizer.state else None
        if type(state) is StoredState:
            self.optimizer.state[parameter] = state.with_tensors(lambda entry: entry.tensor)

    def _adopt(self, parameter):
        """State that torch has made or replaced goes to its place; the unit is staged."""
        state = self.optimizer.state[parameter] if parameter in self.optimizer.state else None
        if state is None or type(state) is StoredState:
            return
        for key, entry in self.planned.get(parameter, {}).items():
            value = state.get(key)
            if isinstance(value, torch.Tensor) and value is not entry.tensor:
                if value.stride() != entry.tensor.stride() and is_dense(value):
                    # State has the strides that its weight had at the time, such as those of torch.channels_last.
                    entry.tensor = tensor_at(entry.pager.staged(entry.number), value, entry.pager, entry.dtype)
                entry.tensor.copy_(value)
                state[key] = entry.tensor
        self._send(parameter, state)

    def _send(self, parameter, state):
        """Tensors on storage are at home; the program sees them through a StoredState."""
        if state and parameter in self._away:
            self.optimizer.state[parameter] = StoredState(state, self._away[parameter])

    @torch.no_grad()
    def _adopt_all(self):
        """After load_state_dict(), and at the start: all state of the optimizer goes to its place."""
        self._known = set(self.optimizer.state)
        for parameter, entries in self.planned.items():
            self._adopt_at_rest(parameter, entries)

    @torch.no_grad()
    def _adopt_at_rest(self, parameter, entries):
        state = self.optimizer.state.get(parameter)
        if state is None or type(state) is StoredState:
            return
        for key, entry in entries.items():
            value = state.get(key)
            if not isinstance(value, torch.Tensor) or value is entry.tensor:
                continue
            if entry.is_stored():
                entry.write(value)
            else:
                entry.tensor.copy_(value)
            state[key] = entry.tensor
        self._send(parameter, state)

    def _bring_all(self, tensor_of):
        """State on storage as plain dictionaries of tensor_of(entry), or of copies that raise on writes, until
        _send_all()."""
        self._before = {parameter: state for parameter, state in self.optimizer.state.items()
                        if type(state) is StoredState}
        for parameter, state in self._before.items():
            self.optimizer.state[parameter] = state.with_copies() if tensor_of is None else state.with_tensors(tensor_of)

    def _send_all(self):
        for parameter, state in self._before.items():
            self.optimizer.state[parameter] = state
        self._before = {}

    def restore(self):
        for hook in self._hooks:
            hook.remove()
        self._bring_all(Entry.read)
        for parameter, entries in self.planned.items():
            state = self.optimizer.state.get(parameter, {})
            for key, entry in entries.items():
                if state.get(key) is entry.tensor:
                    state[key] = entry.tensor.clone()
        self.optimizer.__class__ = self.plain_class
        self.optimizer.__dict__.pop(_STEPPER, None)
