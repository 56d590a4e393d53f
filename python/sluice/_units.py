"""The units of a PyTorch model: the blocks of its lists of layers, and each other module with parameters.

A unit has the parameters that it owns first: a tied weight belongs to the unit where the model names it
first, and the other owner's pass brings that unit, too.
"""
import torch

from ._library import InputError


class Unit:
    """Parameters that move together, and the modules that use them in their forward pass."""

    def __init__(self, name):
        self.name = name
        self.parameters = {}  # name: parameter, in the model's order
        self.places = []      # (module, name in the module, parameter): all that refer to a parameter
        self.modules = []     # their passes need the unit

    def __repr__(self):
        return f"Unit({self.name!r}, {len(self.parameters)} parameters)"


def block_lists(model):
    """The outermost lists of layers: (name, ModuleList) with parameters in their items."""
    found = []
    for name, module in model.named_modules():
        inside = any(name.startswith(prefix + ".") for prefix, _ in found)
        if inside or not isinstance(module, torch.nn.ModuleList) or module._parameters:
            continue
        if any(True for _ in module.parameters()):
            found.append((name, module))
    return found


def _is_dense(tensor):
    """Whether the elements fill their memory without gaps or overlaps, in whatever order."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.size()) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def check_parameter(name, parameter):
    """Raises InputError if the parameter cannot live in Sluice's memory."""
    if parameter.device.type != "cpu":
        raise InputError(f"parameter '{name}' is on {parameter.device}; move the model to the CPU before offload()")
    if parameter.layout != torch.strided or type(parameter) is not torch.nn.Parameter:
        raise InputError(f"parameter '{name}' is a {type(parameter).__name__} of layout {parameter.layout}; offload() "
                         "takes plain, dense parameters")
    if not _is_dense(parameter):
        raise InputError(f"parameter '{name}' has strides {parameter.stride()} with gaps or overlaps; make it contiguous")
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        raise InputError(f"parameter '{name}' has a gradient hook, which offload() would not call; remove it")


def find_units(model):
    """All parameters of the model, each in one unit. Raises InputError for a model that cannot be offloaded."""
    units, owner = [], {}
    blocks = {}  # id of a block: its unit
    for list_name, layers in block_lists(model):
        for key, block in layers.named_children():
            blocks.setdefault(id(block), Unit(f"{list_name}.{key}"))
    inside = {}  # id of a module below a block: the block's unit
    for name, module in model.named_modules():
        unit = blocks.get(id(module))
        if unit is not None:
            unit.modules.append(module)
            for child in module.modules():
                inside.setdefault(id(child), unit)
    for name, module in model.named_modules():
        unit = inside.get(id(module))
        for key, parameter in module._parameters.items():
            if parameter is None or parameter.numel() == 0:
                continue
            if unit is None:
                unit = Unit(name or "model")
                unit.modules.append(module)
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
        add_outside_owners(unit, inside)
    check_sharing(units)
    return units


def add_outside_owners(unit, inside):
    """A tied weight: its other owners' passes need the unit, too."""
    for module, _, _ in unit.places:
        if module not in unit.modules and inside.get(id(module)) is not unit:
            unit.modules.append(module)


def check_sharing(units):
    """Two parameters over the same memory would part when each gets a home."""
    begins = sorted((parameter.data_ptr(), parameter.data_ptr() + parameter.numel() * parameter.element_size(), name)
                    for unit in units for name, parameter in unit.parameters.items())
    for (_, end, name), (begin, _, other) in zip(begins, begins[1:]):
        if begin < end:
            raise InputError(f"parameters '{name}' and '{other}' share memory but are two objects; tie them as one")


def nested_bytes(model, units, round_bytes):
    """The largest sum of weights that are in use at once: a unit's and those of the modules around it."""
    sizes = {}
    for unit in units:
        for module in unit.modules:
            size = sum(p.numel() * p.element_size() for p in unit.parameters.values())
            sizes[id(module)] = sizes.get(id(module), 0) + round_bytes(size)

    def largest(module, seen):
        if id(module) in seen:
            return 0
        below = max((largest(child, seen | {id(module)}) for child in module.children()), default=0)
        return sizes.get(id(module), 0) + below
    return largest(model, frozenset())
