"""sluice.offload(): a PyTorch model and its optimizer in less device memory, with the same bits.

    model, optimizer = sluice.offload(model, optimizer, {"device": "64MiB", "state": "storage", "storage": "/nvme"})

Weights rest in pinned memory or on storage, and come to windows on the device for each pass of a unit (_units.py,
_passes.py). The optimizer is PyTorch's own, stepped unit by unit over staged state (_stepping.py). On the CPU the
device is memory, too: its budget counts the windows, not activations or gradients, which PyTorch allocates.
"""
import os
import pathlib
import weakref

import torch

from . import Engine
from ._library import InputError, Refused
from ._memory import bytes_of, tensor_at
from ._pager import STATE, WEIGHT, Pager
from ._passes import Passes
from ._stand_in import StandIn, Values
from ._stepping import Stepper, planned_state
from ._units import find_units, nested_bytes

_PAGE = 2 << 20  # windows are made of such pages
_UNITS = {"B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "KB": 10**3, "MB": 10**6,
          "GB": 10**9, "TB": 10**12}
_KEYS = ("device", "pinned", "storage_bytes", "storage", "weights", "state", "threads")
_offloaded = weakref.WeakKeyDictionary()  # model: Offloaded


def _bytes(value, key):
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    text = str(value).strip().upper()
    for suffix in sorted(_UNITS, key=len, reverse=True):
        number = text[:-len(suffix)].strip()
        if text.endswith(suffix) and number.replace(".", "", 1).isdigit():
            return int(float(number) * _UNITS[suffix])
    raise InputError(f"{key} is {value!r}; use a number of bytes above 0, such as 268435456 or '256MiB'")


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
    return config


def _windows(settings, model, units):
    """(most bytes of windows, least bytes): without a budget as much as four of the largest units."""
    def rounded(size):
        return -(-size // _PAGE) * _PAGE
    least = nested_bytes(model, units, rounded)
    if "device" not in settings:
        return 4 * least, least
    return _bytes(settings["device"], "device"), least


class OffloadedUnit:
    """A unit with its tensors: the pager's numbers, and windows that hold the weights in passes."""

    def __init__(self, unit):
        self.name, self.parameters, self.places, self.modules = unit.name, unit.parameters, unit.places, unit.modules
        self.numbers = {}   # parameter: number of its weight in the pager
        self.homes = {}     # parameter: tensor over its home; over nothing if it rests on storage
        self.staged = {}    # parameter: tensor over its staged weight
        self.windows = {}   # parameter: leaf tensor over its window
        self.versions = {}  # window: its version, which torch raises with each write
        self._watched = set()

    def watch(self, parameter, window):
        """The window's gradients go to the parameter, as autograd would add them there."""
        if parameter in self._watched or not window.requires_grad:
            return
        self._watched.add(parameter)

        def take_gradient(window):
            gradient, window.grad = window.grad, None
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise InputError(f"a parameter of unit '{self.name}' has got a gradient hook, which offload() does not "
                                 "call; remove it")
            with torch.no_grad():
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)
        window.register_post_accumulate_grad_hook(take_gradient)


class Offloaded:
    """A model under way: its units, pager, passes and optimizer."""

    def __init__(self, model, optimizer, config):
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
        self.pager = Pager(self.engine, weights=settings.get("weights", "auto"), state=settings.get("state", "auto"))
        self.units = [OffloadedUnit(unit) for unit in found]
        self.values = Values(self._read, self._write)
        self._number_of = {}
        self.unit_of = {p: i for i, unit in enumerate(self.units) for p in unit.parameters.values()}
        state = planned_state(optimizer, self.units)
        for unit in self.units:
            self._add(unit, state)
        self.pager.seal()
        for unit in self.units:
            self._move(unit)
        self.passes = Passes(model, self.units, self.pager, self.take_replaced)
        self.stepper = Stepper(optimizer, self, state) if optimizer is not None else None

    def _add(self, unit, state):
        number = self.pager.add_unit(unit.name)
        for parameter in unit.parameters.values():
            unit.numbers[parameter] = self.pager.add(number, WEIGHT, bytes_of(parameter), parameter.data_ptr())
            self._number_of[id(parameter)] = unit.numbers[parameter]
            for entry in state.get(parameter, {}).values():
                entry.number = self.pager.add(number, STATE, parameter.numel() * entry.dtype.itemsize)

    def _move(self, unit):
        """The parameters' data become those of their homes."""
        for name, parameter in unit.parameters.items():
            number = unit.numbers[parameter]
            like = parameter.data
            window = tensor_at(self.pager.window(number), like, self.pager)
            unit.windows[parameter] = torch.nn.Parameter(window, requires_grad=False)
            unit.windows[parameter].__dict__.update(parameter.__dict__)
            unit.staged[parameter] = tensor_at(self.pager.staged(number), like, self.pager)
            self.values.add(parameter, name, like.stride())
            if self.pager.home(number) is None:
                unit.homes[parameter] = torch.empty(1, dtype=like.dtype).expand(like.size())
                self.guard(unit, parameter)
            else:
                unit.homes[parameter] = parameter.data = unit.staged[parameter]

    def guard(self, unit, parameter):
        """A parameter that rests on storage, between passes."""
        parameter.data = unit.homes[parameter]
        parameter.__class__ = StandIn
        parameter._source = self.values

    def unguard(self, unit, parameter):
        """For the time of an update, and for good in restore()."""
        if type(parameter) is StandIn:
            parameter.__class__ = torch.nn.Parameter
            del parameter._source
            parameter.data = unit.staged[parameter]

    def _read(self, parameter, into):
        self.pager.read(self._number_of[id(parameter)], into.data_ptr(), bytes_of(into))

    def _write(self, parameter, value):
        self.pager.write(self._number_of[id(parameter)], value.data_ptr(), bytes_of(value))

    def take_replaced(self):
        """Data that the program has put in the place of homes since the last pass are copied there."""
        for unit in self.units:
            for parameter, home in unit.homes.items():
                if type(parameter) is StandIn or parameter.data_ptr() == home.data_ptr():
                    continue
                if parameter.shape != home.shape or parameter.dtype != home.dtype or parameter.device != home.device:
                    raise InputError(f"a parameter of unit '{unit.name}' has become {parameter.dtype} of shape "
                                     f"{tuple(parameter.shape)} on {parameter.device}; call sluice.restore(model) before "
                                     "you convert or move it")
                home.copy_(parameter.data)
                parameter.data = home

    def restore(self):
        self.passes.remove()
        if self.stepper is not None:
            self.stepper.restore()
        for unit in self.units:
            for parameter in unit.parameters.values():
                value = self.values.read(parameter) if type(parameter) is StandIn else parameter.data
                own = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
                own.copy_(value)
                self.unguard(unit, parameter)
                parameter.data = own
        self.pager.close()


class Status(dict):
    """Bytes and counts of an offloaded model; prints as a table."""

    def __str__(self):
        width = max(len(key) for key in self)
        return "\n".join(f"{key:<{width}}  {value}" for key, value in self.items())


def offload(model, optimizer=None, config="auto"):
    """Moves the model's weights and the optimizer's state to Sluice's memory. Returns the same two objects.

    config: "auto", the path of a TOML file, or a dictionary of
        device        bytes of windows for weights on the device; by default four of the largest units
        pinned        bytes of pinned memory; by default nine tenths of the free memory
        storage       a directory, or several, for bytes that do not fit or are told to lie there
        storage_bytes bytes of storage; by default nine tenths of the free bytes
        weights       "auto", "pinned" or "storage": where weights rest
        state         the same of optimizer state
        threads       of Sluice; by default all cores
    Bytes are numbers or texts such as "1.5GiB". Raises InputError for a model or an optimizer that cannot be
    offloaded, and Refused if the budgets are too small; nothing has changed then.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    if model in _offloaded:
        raise InputError("the model is offloaded already; call sluice.restore(model) first")
    for kind in (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel):
        if isinstance(model, kind):
            raise InputError(f"model is a {kind.__name__}; offload() trains on one device, so pass the module inside")
    _offloaded[model] = Offloaded(model, optimizer, config)
    return model, optimizer


def is_offloaded(model):
    return model in _offloaded


def _of(model):
    found = _offloaded.get(model)
    if found is None:
        raise InputError("the model is not offloaded")
    return found


def restore(model):
    """Makes the model and its optimizer plain again, with memory of PyTorch's own. Returns the model."""
    _of(model).restore()
    del _offloaded[model]
    return model


def status(model):
    """Bytes by tier, fetches and deviations of an offloaded model."""
    found = _of(model)
    stats = found.pager.stats()
    total = sum(bytes_of(parameter) for unit in found.units for parameter in unit.parameters.values())
    usage = {tier: found.engine.usage(tier) for tier in ("device", "pinned", "storage")}
    return Status(units=len(found.units), weight_bytes=total, **{
        f"{tier}_{key}_bytes": usage[tier][key] for tier in usage for key in ("live", "peak", "cap")}, **{
        key: stats[key] for key in stats if key != "sealed"})
