"""sluice.offload(): a PyTorch model and its optimizer in less device memory, with the same bits.

    model, optimizer = sluice.offload(model, optimizer, {"device": "64MiB", "state": "storage", "storage": "/nvme"})

Weights rest in pinned memory or on storage, and come to windows on the device for each pass of a unit (_units.py,
_passes.py). The optimizer is PyTorch's own, stepped unit by unit over staged state (_stepping.py). On the CPU the
device is memory, too: its budget counts the windows, not activations or gradients, which PyTorch allocates.
"""
import os
import pathlib

import torch

from . import Engine
from ._library import InputError, Refused
from ._memory import bytes_of
from ._offloaded_unit import OffloadedUnit
from ._pager import STATE, WEIGHT, Pager
from ._passes import Hook, Passes
from ._stand_in import Values
from ._stepping import Stepper, planned_state
from ._units import find_units, nested_bytes

_PAGE = 2 << 20  # windows are made of such pages
_UNITS = {"B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "KB": 10**3, "MB": 10**6,
          "GB": 10**9, "TB": 10**12}
_KEYS = ("device", "pinned", "storage_bytes", "storage", "weights", "state", "threads")


def _bytes(value, key):
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    text = str(value).strip().upper()
    for suffix in sorted(_UNITS, key=len, reverse=True):
        number = text[:-len(suffix)].strip()
        if text.endswith(suffix) and number.replace(".", "", 1).isdigit() and int(float(number) * _UNITS[suffix]) > 0:
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
    threads, storage = config.get("threads", 0), config.get("storage", ())
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 0:
        raise InputError(f"threads is {threads!r}; use a number, or 0 for all cores")
    paths = storage if isinstance(storage, (list, tuple)) else [storage]
    if not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise InputError(f"storage is {storage!r}; use a directory or a list of them")
    return config


def _windows(settings, model, units):
    """(most bytes of windows, least bytes): without a budget as much as four of the largest units."""
    def rounded(size):
        return -(-size // _PAGE) * _PAGE
    least = nested_bytes(model, units, rounded)
    if "device" not in settings:
        return 4 * least, least
    return _bytes(settings["device"], "device"), least


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
        self.units = [OffloadedUnit(unit, self.pager) for unit in found]
        self.values = Values(self._read, self._write)
        self._number_of = {}
        self.unit_of = {p: i for i, unit in enumerate(self.units) for p in unit.parameters.values()}
        state = planned_state(optimizer, self.units)
        for unit in self.units:
            self._add(unit, state)
        self.pager.seal()
        for unit in self.units:
            unit.move(self.values)
        self.passes = Passes(model, found, self.units, self.pager, self)
        self.stepper = Stepper(optimizer, self, state) if optimizer is not None else None

    def _add(self, unit, state):
        number = self.pager.add_unit(unit.name)
        for parameter in unit.parameters.values():
            unit.numbers[parameter] = self.pager.add(number, WEIGHT, bytes_of(parameter), parameter.data_ptr())
            self._number_of[id(parameter)] = unit.numbers[parameter]
            for entry in state.get(parameter, {}).values():
                entry.number = self.pager.add(number, STATE, parameter.numel() * entry.dtype.itemsize)

    def _read(self, parameter, into):
        self.pager.read(self._number_of[id(parameter)], into.data_ptr(), bytes_of(into))

    def _write(self, parameter, value):
        self.pager.write(self._number_of[id(parameter)], value.data_ptr(), bytes_of(value))
        self.passes.is_stale = True

    def take_replaced(self):
        """Data that the program has put in the place of homes since the last pass are copied there."""
        for unit in self.units:
            unit.take_replaced()

    def restore(self):
        """Sluice's memory ends with the last tensor over it that the program has kept."""
        self.passes.remove()
        if self.stepper is not None:
            self.stepper.restore()
        for unit in self.units:
            unit.restore()
        self.values = self.stepper = self.pager = self.engine = None


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
    if is_offloaded(model):
        raise InputError("the model is offloaded already; call sluice.restore(model) first")
    for kind in (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel):
        if isinstance(model, kind):
            raise InputError(f"model is a {kind.__name__}; offload() trains on one device, so pass the module inside")
    Offloaded(model, optimizer, config)
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
    return any(unit.is_stored(parameter) for unit in _of(model).units for parameter in unit.windows)


def status(model):
    """Bytes by tier, fetches and deviations of an offloaded model."""
    found = _of(model)
    stats = found.pager.stats()
    total = sum(bytes_of(parameter) for unit in found.units for parameter in unit.parameters.values())
    usage = {tier: found.engine.usage(tier) for tier in ("device", "pinned", "storage")}
    return Status(units=len(found.units), weight_bytes=total, **{
        f"{tier}_{key}_bytes": usage[tier][key] for tier in usage for key in ("live", "peak", "cap")}, **{
        key: stats[key] for key in stats if key != "sealed"})
