"""A unit with its weights, which come to their windows and leave together."""
import ctypes

from ._library import InputError
from ._memory import is_same_memory


class OffloadedUnit:
    """See above. Graphs hold it, so it holds no module: a model that keeps its outputs could not be freed."""

    def __init__(self, unit):
        self.name, self.parameters = unit.name, unit.parameters
        self.numbers = {}  # parameter: number of its weight in the pager
        self.weights = {}  # parameter: Weight
        self.span = 0, 0   # addresses of all windows
        self._snapshots = None  # Snapshots
        self._snapshot = None   # of the span when it was put in, if weights on storage were

    def move(self, weights):
        """The parameters' data become those of their homes."""
        self.weights = {parameter: weights.add(name, parameter, self.numbers[parameter])
                        for name, parameter in self.parameters.items()}
        spans = [weight.span for weight in self.weights.values()]
        self.span = min(begin for begin, _ in spans), max(end for _, end in spans)
        self._snapshots = weights.snapshots

    def check_places(self, places):
        """places: (module, name in the module, parameter) of all that refer to the unit's parameters."""
        for module, key, parameter in places:
            if module._parameters.get(key) is not parameter:
                raise InputError(f"parameter '{key}' of unit '{self.name}' was replaced after offload(); write into it, "
                                 "or call sluice.restore(model) first")
            if parameter._post_accumulate_grad_hooks:
                raise InputError(f"parameter '{key}' of unit '{self.name}' has got a hook after its gradient, which "
                                 "would find a weight that leaves; remove it")

    def put_in(self):
        for weight in self.weights.values():
            weight.put_in()
        if any(weight.is_in and weight.is_stored for weight in self.weights.values()):
            begin, end = self.span
            self._snapshot = self._snapshots.take(begin, end - begin)

    def take_out(self):
        """Returns whether the pass has written weights on storage."""
        snapshot, self._snapshot = self._snapshot, None
        begin, end = self.span
        former = None if snapshot is None or is_same_memory(begin, snapshot, end - begin) else ctypes.addressof(snapshot)
        is_written, error = False, None
        for weight in self.weights.values():
            try:
                is_written |= weight.take_out(None if former is None else former + weight.span[0] - begin)
            except InputError as refused:
                error = refused
        if snapshot is not None:
            self._snapshots.give(snapshot)
        if error is not None:
            raise error
        return is_written

    def check_kept(self, name, known):
        """After the forward pass of a module. known: tensors that may be views of windows, and will be copied."""
        for weight in self.weights.values():
            if weight.is_kept(known):
                raise InputError(f"the forward pass of '{name}' keeps a tensor over the memory of parameter '{weight.name}' (a "
                                 "view of it, its data or detach()), which leaves with the pass; keep a clone(), or save "
                                 "it by ctx.save_for_backward()")

    def is_stored(self, parameter):
        return self.weights[parameter].is_stored

    def look(self):
        for weight in self.weights.values():
            weight.look()

    def restore(self):
        for weight in self.weights.values():
            weight.restore()
        self.weights = {}
