"""The state of one parameter of an optimizer, with some tensors on storage.

The program sees a dictionary with all keys, in torch's order. Reading a tensor that rests on storage gives a copy,
which raises on a write in place (_stand_in.py); assigning one writes it to storage. Inside, the place of such a tensor
has a mark instead.
"""
import copy

import torch

from ._library import InputError
from ._stand_in import Copy

_AWAY = object()


class StoredState(dict):
    """See above. entries: {key: Entry} of tensors that rest on storage."""

    def __init__(self, state, entries):
        super().__init__({key: _AWAY if key in entries else value for key, value in state.items()})
        self._entries = entries

    def with_tensors(self, tensor_of):
        """A plain dictionary, with tensor_of(entry) for each tensor that rests on storage."""
        return {key: tensor_of(self._entries[key]) if value is _AWAY else value for key, value in super().items()}

    def with_copies(self):
        return {key: self[key] for key in self}

    def __getitem__(self, key):
        value = super().__getitem__(key)
        if value is not _AWAY:
            return value
        return Copy.of(self._entries[key].read(), f"this tensor is a copy of the state {key!r}, which rests on storage, so "
                       f"a write to it would be lost; assign a new one: optimizer.state[parameter][{key!r}] = tensor",
                       is_state=True)

    def __setitem__(self, key, value):
        if super().get(key) is not _AWAY:
            return super().__setitem__(key, value)
        entry = self._entries[key]
        if not isinstance(value, torch.Tensor) or value.shape != entry.tensor.shape:
            raise InputError(f"the state {key!r} rests on storage as a tensor of shape {tuple(entry.tensor.shape)}; assign "
                             "such a tensor")
        entry.write(value.detach())

    def _refuse(self, *arguments, **keywords):
        raise InputError("this state rests on storage and keeps its keys; assign tensors to them, delete "
                         "optimizer.state[parameter], or call optimizer.load_state_dict()")

    __delitem__ = pop = popitem = clear = _refuse

    # Without this dict() and ** would copy the marks.
    def __iter__(self):
        return super().__iter__()

    def get(self, key, default=None):
        return self[key] if key in self else default

    def items(self):
        return self.with_copies().items()

    def values(self):
        return self.with_copies().values()

    def copy(self):
        return self.with_copies()

    def setdefault(self, key, default=None):
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others, **keywords):
        for key, value in dict(*others, **keywords).items():
            self[key] = value

    def __ior__(self, other):
        self.update(other)
        return self

    def __or__(self, other):
        return {**self.with_copies(), **other}

    def __ror__(self, other):
        return {**other, **self.with_copies()}

    def __eq__(self, other):
        return self is other

    def __ne__(self, other):
        return self is not other

    def __copy__(self):
        return self.with_copies()

    def __deepcopy__(self, memo):
        return copy.deepcopy(self.with_tensors(lambda entry: entry.read()), memo)

    def __reduce_ex__(self, protocol):
        return dict, (self.with_tensors(lambda entry: entry.read()),)

    def __repr__(self):
        return repr(self.with_copies())
