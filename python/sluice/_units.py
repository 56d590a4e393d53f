"""The units of a PyTorch model: the blocks of its lists of layers, and each other module with parameters.

A unit has the parameters that it owns first: a tied weight belongs to the unit where the model names it
first, and the other owner's pass brings that unit, too.
"""
import torch

from ._library import InputError
from ._memory import bytes_of, is_dense
from ._stand_in import StandIn

_COMPUTE_FOR_CHILDREN = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)
_PAGE = 2 << 20  # of windows
_ALIGNMENT = 256  # of a tensor in a window


class Unit:
    """Parameters that move together, and the modules that use them in their forward pass."""

    def __init__(self, name):
        self.name = name
        self.parameters = {}  # name: parameter, in the model's order
        self.places = []      # (module, name in the module, parameter): all that refer to a parameter
        self.modules = []     # their passes need the unit

    def __repr__(self):
        return f"Unit({self.name!r}, {len(self.parameters)} parameters)"


def has_forward(module):
    """Whether the module can be called: lists of modules or of parameters cannot, so no hook of theirs would run."""
    return type(module).forward is not torch.nn.Module.forward or "forward" in module.__dict__


def find_blocks(model):
    """The blocks of the outermost lists of layers: [(name, module)]. A list in such a list has blocks of its own. An
    attention module computes with the weights of its child and never calls it, so it is a block, too."""
    found, seen = [], set()  # seen: ids of blocks

    def take(name, module, is_item):
        if id(module) in seen:
            return
        if has_forward(module) and (is_item or isinstance(module, _COMPUTE_FOR_CHILDREN)):
            found.append((name, module))
            seen.add(id(module))
            return
        is_list = isinstance(module, torch.nn.ModuleList) and not module._parameters
        for key, child in module.named_children():
            take(f"{name}.{key}" if name else key, child, is_list or is_item and not has_forward(module))
    take("", model, False)
    return found


def is_lazy(parameter):
    return isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin)


def check_parameter(name, parameter):
    """Raises InputError if the parameter cannot live in Sluice's memory."""
    if parameter.device.type != "cpu":
        raise InputError(f"parameter '{name}' is on {parameter.device}; move the model to the CPU before offload()")
    if isinstance(parameter, StandIn):
        raise InputError(f"parameter '{name}' rests on storage with another offloaded model; call sluice.restore() of that "
                         "one first")
    if is_lazy(parameter):
        raise InputError(f"parameter '{name}' of a lazy module has no shape yet; call the model once before offload()")
    if type(parameter) is not torch.nn.Parameter:
        raise InputError(f"parameter '{name}' is a {type(parameter).__name__}; offload() takes torch.nn.Parameter alone")
    if parameter.layout != torch.strided:
        raise InputError(f"parameter '{name}' is of layout {parameter.layout}; offload() takes dense parameters")
    if not is_dense(parameter):
        raise InputError(f"parameter '{name}' has strides {parameter.stride()} with gaps or overlaps; make it contiguous")
    if parameter.is_inference():
        raise InputError(f"parameter '{name}' was made in inference_mode(), where torch counts no writes; make it outside")
    if parameter._post_accumulate_grad_hooks:
        raise InputError(f"parameter '{name}' has a hook after its gradient (register_post_accumulate_grad_hook), "
                         "which would find a weight that leaves; remove it")


def find_units(model):
    """All parameters of the model, each in one unit. Raises InputError for a model that cannot be offloaded."""
    units, owner = [], {}
    blocks = {id(block): Unit(name) for name, block in find_blocks(model)}
    inside = {}  # id of a module below a block: the block's unit
    callers = {}  # id of a module: itself, or the module around it that can be called
    for name, module in model.named_modules():
        unit = blocks.get(id(module))
        if unit is not None:
            unit.modules.append(module)
            for child in module.modules():
                inside.setdefault(id(child), unit)
        callers.setdefault(id(module), module)
        for child in module.children():
            callers.setdefault(id(child), child if has_forward(child) else callers[id(module)])
    for name, module in model.named_modules():
        unit = inside.get(id(module))
        for key, parameter in module._parameters.items():
            if parameter is None or not is_lazy(parameter) and parameter.numel() == 0:
                continue
            if unit is None:
                unit = Unit(name or "model")
                unit.modules.append(callers[id(module)])
            full_name = f"{name}.{key}" if name else key
            if parameter not in owner:
                check_parameter(full_name, parameter)
                owner[parameter] = unit
                unit.parameters[full_name] = parameter
                if unit not in units:
                    units.append(unit)
            owner[parameter].places.append((module, key, parameter))
    if not units:
        raise InputError("the model has no parameters")
    for unit in units:
        add_outside_owners(unit, inside, callers)
    for module in model.modules():
        # It looks at its first layer, and takes another path for tensors with a __torch_function__, as placeholders are.
        if isinstance(module, torch.nn.TransformerEncoder) and len(module.layers) > 0:
            first = inside.get(id(module.layers[0]))
            if first is not None and first is not inside.get(id(module)):
                first.modules.append(module)
    return units


def add_outside_owners(unit, inside, callers):
    """A tied weight: its other owners' passes need the unit, too."""
    for module, _, _ in unit.places:
        caller = callers[id(module)]
        if caller not in unit.modules and inside.get(id(module)) is not unit:
            unit.modules.append(caller)


def window_bytes(unit):
    """Bytes of the windows of a unit's weights: pages, in which each tensor begins at a multiple of 256 bytes."""
    end = 0
    for parameter in unit.parameters.values():
        end = -(-end // _ALIGNMENT) * _ALIGNMENT + bytes_of(parameter)
    return -(-end // _PAGE) * _PAGE


def nested_bytes(model, units):
    """The largest sum of windows that are in use at once: a unit's and those of the modules around it."""
    sizes = {}
    for unit in units:
        for module in unit.modules:
            sizes[id(module)] = sizes.get(id(module), 0) + window_bytes(unit)

    def largest(module, seen):
        if id(module) in seen:
            return 0
        below = max((largest(child, seen | {id(module)}) for child in module.children()), default=0)
        return sizes.get(id(module), 0) + below
    return largest(model, frozenset())
