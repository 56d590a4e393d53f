"""sluice.offload(): a PyTorch model and its optimizer in less device memory, with the same bits.

    model, optimizer = sluice.offload(model, optimizer, {"device": "64MiB", "state": "storage", "storage": "/tmp"})

Weights rest in pinned memory or on storage, and come to windows on the device for each pass of a unit (_units.py,
_passes.py). The optimizer is PyTorch's own, stepped unit by unit over staged state (_stepping.py). On the CPU the
device is memory, too: its budget counts the windows, not activations or gradients, which PyTorch allocates.
"""
import os
import pathlib
import warnings
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import Engine
from ._library import InputError, Refused
from ._memory import bytes_of
from ._offloaded_unit import OffloadedUnit
from ._pager import PLACES, STATE, WEIGHT, Pager
from ._passes import Hook, Passes
from ._sharing import find_views, move, place_of
from ._stand_in import Values
from ._stepping import Stepper, check_optimizer, planned_state, unwrapped
from ._units import find_units, nested_bytes
from ._weights import Weights

_UNITS = {"B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "KB": 10**3, "MB": 10**6,
          "GB": 10**9, "TB": 10**12}
_MOST = 1 << 63
_KEYS = ("device", "pinned", "storage_bytes", "storage", "weights", "state", "threads")


def _bytes(value, key):
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST:
        return value
    text = str(value).strip().upper()
    for suffix in sorted(_UNITS, key=len, reverse=True):
        number = text[:-len(suffix)].strip()
        if text.endswith(suffix) and number.replace(".", "", 1).isdigit() and 1 <= float(number) * _UNITS[suffix] < _MOST:
            return int(float(number) * _UNITS[suffix])
    cure = "use a number of bytes above 0 and below 2**63, such as 268435456 or '256MiB'"
    if key == "device":
        cure += "; device is the memory of the weights in use, and this version computes on the CPU"
    raise InputError(f"{key} is {value!r}; {cure}")


def _settings(config):
    """A dictionary with the keys of _KEYS, from offload()'s third argument."""
    if config == "auto":
        return {}
    if isinstance(config, (str, os.PathLike)):
        try:
            import tomllib
        except ImportError:
            raise InputError("TOML files need Python 3.11; pass a dictionary") from None
        try:
            config = tomllib.loads(pathlib.Path(config).read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise InputError(f"{config}: {error}") from None
        config = config.get("offload", config)
    if not isinstance(config, dict):
        raise InputError(f"config is a {type(config).__name__}; use 'auto', the path of a TOML file or a dictionary")
    for key in config:
        if key not in _KEYS:
            raise InputError(f"config has an unknown key {key!r}; use some of {', '.join(_KEYS)}")
    threads, storage = config.get("threads", 0), config.get("storage", ())
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 0:
        raise InputError(f"threads is {threads!r}; use a number, or 0 for all cores")
    paths = storage if isinstance(storage, (list, tuple)) else [storage]
    if not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise InputError(f"storage is {storage!r}; use a directory or a list of them")
    for key in ("weights", "state"):
        if PLACES.get(config.get(key)) == PLACES["storage"] and not paths:
            raise InputError(f"{key} is {config[key]!r} and config has no directory for it; add storage = a directory")
    return config


def _windows(settings, model, units):
    """(most bytes of windows, least bytes): without a budget as much as four of the largest units."""
    least = nested_bytes(model, units)
    if "device" not in settings:
        return 4 * least, least
    return _bytes(settings["device"], "device"), least


def _seal(pager):
    """Refusals name the keys of the configuration."""
    try:
        pager.seal()
    except Refused as refused:
        text = str(refused).removeprefix("sluice_pager_seal: ")
        raise Refused(text.replace("pinned_bytes", "pinned").replace("device_bytes", "device")) from None


class Offloaded:
    """A model under way: its units, pager, passes and optimizers."""

    def __init__(self, model, optimizers, config):
        settings = _settings(config)
        found = find_units(model)
        most, least = _windows(settings, model, found)
        if most < least:
            raise Refused(f"modules that are in use at once have {least} bytes of weights in windows and device has {most}; "
                          f"smallest change that fits: device larger by {least - most} bytes")
        storage = settings.get("storage", ())
        self.engine = Engine(
            device_bytes=most, pinned_bytes=_bytes(settings["pinned"], "pinned") if "pinned" in settings else 0,
            storage_bytes=_bytes(settings["storage_bytes"], "storage_bytes") if "storage_bytes" in settings else 0,
            storage=storage, threads=settings.get("threads", 0))
        views = [(view, parameter, place_of(view, parameter)) for view, parameter in find_views(found)]
        self._state_place = settings.get("state", "auto")
        self.pager = Pager(self.engine, weights=settings.get("weights", "auto"), state=self._state_place)
        self._numbers = {number: number for number in range(len(found))}
        self._late = []  # (pager of state that was planned later, {unit: its number there})
        self.other_optimizers = weakref.WeakSet()  # that have stepped this model's parameters without offload()'s knowledge
        self.units = [OffloadedUnit(unit) for unit in found]
        self.values = Values(self._read, self._write, lambda parameter: self.weights.of(parameter))
        self.weights = Weights(self.pager, self.values)
        self._number_of = {}
        self.unit_of = {p: i for i, unit in enumerate(self.units) for p in unit.parameters.values()}
        states = [planned_state(optimizer, self.unit_of) for optimizer in optimizers]
        for unit in self.units:
            number = self.pager.add_unit(unit.name)
            for parameter in unit.parameters.values():
                unit.numbers[parameter] = self.pager.add(number, WEIGHT, bytes_of(parameter), parameter.data_ptr())
                self._number_of[id(parameter)] = unit.numbers[parameter]
                for state in states:
                    self._add_state(self.pager, number, parameter, state)
        _seal(self.pager)
        for unit in self.units:
            unit.move(self.weights)
        for view, parameter, offset in views:
            move(view, offset, self.weights.of(parameter).home)
        self.passes = Passes(model, found, self.units, self.pager, self)
        self.steppers = [Stepper(optimizer, self, state) for optimizer, state in zip(optimizers, states)]

    @staticmethod
    def _add_state(pager, number, parameter, state):
        for entry in state.get(parameter, {}).values():
            entry.pager, entry.number = pager, pager.add(number, STATE, parameter.numel() * entry.dtype.itemsize)

    def add_late_state(self, state):
        """A pager of its own for state that was not planned at the start, within what is left of the engine's budgets."""
        pager, numbers = Pager(self.engine, state=self._state_place), {}
        for parameter in state:
            unit = self.unit_of[parameter]
            if unit not in numbers:
                numbers[unit] = pager.add_unit(self.units[unit].name)
            self._add_state(pager, numbers[unit], parameter, state)
        _seal(pager)
        self._late.append((pager, numbers))

    def pagers(self):
        return [self.pager, *(pager for pager, _ in self._late)]

    def stage(self, unit, following):
        """Weights and state of a unit, those of the next one meanwhile."""
        staged = []
        try:
            for pager, numbers in self._stages(unit):
                pager.stage(numbers[unit], numbers.get(following))
                staged.append((pager, numbers[unit]))
        except Exception:
            for pager, number in staged:
                pager.unstage(number)
            raise

    def unstage(self, unit):
        for pager, numbers in self._stages(unit):
            pager.unstage(numbers[unit])

    def _stages(self, unit):
        return [(self.pager, self._numbers), *((pager, of) for pager, of in self._late if unit in of)]

    def _read(self, parameter, into):
        self.pager.read(self._number_of[id(parameter)], into.data_ptr(), bytes_of(into))

    def _write(self, parameter, value):
        self.pager.write(self._number_of[id(parameter)], value.data_ptr(), bytes_of(value))
        self.passes.is_stale = True

    def look(self):
        """Between passes: follows what the program has assigned to parameter.data."""
        for unit in self.units:
            unit.look()
        self.values.settle()
        self.weights.settle()

    def restore(self):
        """Sluice's memory ends with the last tensor over it that the program has kept."""
        self.values.settle()
        self.passes.remove()
        for stepper in self.steppers:
            stepper.restore()
        for unit in self.units:
            unit.restore()
        self.values = self.weights = self.pager = self.engine = None
        self.steppers, self._late = [], []


class Status(dict):
    """Bytes and counts of an offloaded model; prints as a table."""

    def __str__(self):
        width = max(len(key) for key in self)
        return "\n".join(f"{key:<{width}}  {value}" for key, value in self.items())


_live = weakref.WeakSet()


def _note_optimizer(optimizer, arguments, keywords):
    """Before each step of any optimizer: one that offload() was not given keeps its state outside the budgets."""
    if not _live or hasattr(optimizer, "_sluice_stepper"):
        return
    for offloaded in list(_live):
        if optimizer in offloaded.other_optimizers or not any(
                parameter in offloaded.unit_of for group in optimizer.param_groups for parameter in group["params"]):
            continue
        offloaded.other_optimizers.add(optimizer)
        if offloaded.steppers:
            warnings.warn(f"this {type(optimizer).__name__} steps weights of an offloaded model and was not given to "
                          "sluice.offload(): its state is in PyTorch's memory, outside the budgets; call "
                          "sluice.offload(model, [optimizer, …]) with all of them", stacklevel=3)


register_optimizer_step_pre_hook(_note_optimizer)


def offload(model, optimizer=None, config="auto"):
    """Moves the model's weights and the optimizer's state to Sluice's memory. Returns the same two objects.

    optimizer: one, a list of several, or None: then weights alone move, and any optimizer works.
    config: "auto", the path of a TOML file, or a dictionary of
        device        bytes of windows for weights on the device; by default four of the largest units
        pinned        bytes of pinned memory; by default nine tenths of the free memory
        storage       a directory, or several, for bytes that do not fit or are told to lie there
        storage_bytes bytes of storage; by default nine tenths of the free bytes
        weights       "auto", "pinned" (or "cpu") or "storage" (or "nvme"): where weights rest
        state         the same of optimizer state
        threads       of Sluice; by default all cores
    Bytes are numbers or texts such as "1.5GiB". Raises InputError for a model or an optimizer that cannot be
    offloaded, and Refused if the budgets are too small; nothing has changed then.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    if is_offloaded(model):
        raise InputError("the model is offloaded already; call sluice.restore(model) first")
    for kind in (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel):
        if isinstance(model, kind):
            raise InputError(f"model is a {kind.__name__}; pass the module inside, model.module, before you wrap it")
    given = optimizer if isinstance(optimizer, (list, tuple)) else [] if optimizer is None else [optimizer]
    optimizers = [unwrapped(each) for each in given]
    for each in optimizers:
        check_optimizer(each)
    if len({id(each) for each in optimizers}) < len(optimizers):
        raise InputError("an optimizer is in the list twice")
    _live.add(Offloaded(model, optimizers, config))
    return model, optimizer


def _find(model):
    """The model's Offloaded, or None. Its hooks hold it, so it ends with the model."""
    for hook in model._forward_pre_hooks.values():
        if isinstance(hook, Hook) and hook.owner.passes.model() is model:
            return hook.owner
    return None


def is_offloaded(model):
    return _find(model) is not None


def _of(model):
    found = _find(model)
    if found is None:
        raise InputError("the model is not offloaded")
    return found


def restore(model):
    """Makes the model and its optimizer plain again, with memory of PyTorch's own. Returns the model."""
    _of(model).restore()
    return model


def rests_on_storage(model):
    """Whether some weights of the offloaded model do."""
    return any(unit.is_stored(parameter) for unit in _of(model).units for parameter in unit.parameters.values())


def status(model):
    """Bytes by tier, fetches and deviations of an offloaded model. other_state_bytes: state of optimizers that step its
    weights and were not given to offload(), in PyTorch's memory."""
    found = _of(model)
    stats = [pager.stats() for pager in found.pagers()]
    total = sum(bytes_of(parameter) for unit in found.units for parameter in unit.parameters.values())
    other = sum(bytes_of(value) for optimizer in found.other_optimizers for parameter, state in optimizer.state.items()
                if parameter in found.unit_of for value in state.values() if isinstance(value, torch.Tensor))
    usage = {tier: found.engine.usage(tier) for tier in ("device", "pinned", "storage")}
    return Status(units=len(found.units), weight_bytes=total, **{
        f"{tier}_{key}_bytes": usage[tier][key] for tier in usage for key in ("live", "peak", "cap")}, **{
        key: sum(each[key] for each in stats) for key in stats[0] if key != "sealed"}, other_state_bytes=other)
