"""Optimizers for PyTorch, with their state in pinned memory or on NVMe.

    optimizer = sluice.optim.AdamW(model.parameters(), lr=1e-3, state="storage", storage="/nvme")

Parameters on the CPU move into Sluice's pinned memory: they keep identity, shape and values, and their
storage is the optimizer's from then on. Parameters on a GPU stay there, and are copied after each step.
"""
import ctypes

import torch

from . import Engine, InputError, Session, _library

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_KEPT = {"fp32": torch.float32, "bf16": torch.bfloat16, "i16": torch.int16, "8bit": torch.uint8}
# torch's names of the state. The master of 16-bit parameters and the scales of 8-bit moments are entries that torch
# does not have.
_KINDS = {"exp_avg": "moment1", "exp_avg_sq": "moment2", "master": "master"}
_SCALES = {"exp_avg_scale": "moment1_scale", "exp_avg_sq_scale": "moment2_scale"}
_SCALED_ELEMS = 128  # elements that share a scale


def _tensor_at(address, like, session, dtype=None):
    """A tensor of the shape of `like` over memory of the session, which it keeps alive."""
    dtype = dtype or like.dtype
    count = like.numel()
    memory = (ctypes.c_byte * (count * torch.empty((), dtype=dtype).element_size())).from_address(address)
    memory.session = session
    return torch.frombuffer(memory, dtype=dtype, count=count).view(like.shape)


class AdamW(torch.optim.Optimizer):
    """AdamW in Sluice's own arithmetic (docs/design/arithmetic.md), which differs from torch's in the last
    bits. state: "auto", "pinned" or "nvme" (in the directories `storage`); moments: "fp32", "bf16" or "8bit"; split:
    bf16 parameters keep a 16-bit remainder in place of an fp32 master. Every parameter needs a gradient in every
    step."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, state="auto",
                 moments="fp32", split=False, engine=None, storage=()):
        self._session = None
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._formats = {"moments": moments, "split": split}
        self._session = Session(engine or Engine(storage=storage), state=state)
        self._numbers = {}  # parameter: number in the session
        keep = self._add_all()
        self._session.seal()
        del keep
        self._homes = {parameter: _tensor_at(self._session.weight_address(number), parameter, self._session)
                       for parameter, number in self._numbers.items()}
        for parameter, home in self._homes.items():
            if parameter.device.type == "cpu":
                parameter.data = home
        self._note_values()

    def add_param_group(self, param_group):
        """Only while the optimizer is made: its memory is planned then, as a whole."""
        if self._session is not None:
            raise InputError("a parameter group cannot be added: the memory of all parameters was planned when the "
                             "optimizer was made; make another one with all groups")
        super().add_param_group(param_group)

    def __reduce_ex__(self, protocol):
        raise InputError("the optimizer's state lies in Sluice's memory; copy or save optimizer.state_dict() instead")

    def _settings(self, group):
        return {"lr": float(group["lr"]), "betas": group["betas"], "eps": group["eps"],
                "weight_decay": group["weight_decay"], **self._formats}

    def _add_all(self):
        """Names all parameters to the session. Returns the tensors that seal() reads."""
        keep = []
        for g, group in enumerate(self.param_groups):
            number = self._session.add_group(**self._settings(group))
            for p, parameter in enumerate(group["params"]):
                if parameter.dtype not in _DTYPES:
                    raise InputError(f"parameter {p} of group {g} is {parameter.dtype}; use float32, bfloat16 or "
                                     "float16")
                values = parameter.detach().to("cpu").contiguous()
                keep.append(values)
                name = f"group{g}.param{p}"
                self._numbers[parameter] = self._session.add_param(
                    name, tuple(parameter.shape), unit=self._session.add_unit(name), group=number,
                    dtype=_DTYPES[parameter.dtype], data=values.data_ptr())
        return keep

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for g, group in enumerate(self.param_groups):
            for p, parameter in enumerate(group["params"]):
                if parameter.grad is None:
                    raise InputError(f"parameter {p} of group {g} has no gradient")
        self._take_changes()
        for g, group in enumerate(self.param_groups):
            self._session.set_group(g, **self._settings(group))
        # The session adds what it is given, so nothing may fail from here on.
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad.to(device="cpu", dtype=parameter.dtype).contiguous()
                self._session.give_gradient(self._numbers[parameter], gradient.data_ptr())
        self._session.update()
        for parameter, home in self._homes.items():
            if parameter.data_ptr() != home.data_ptr():
                parameter.copy_(home)
        self._note_values()
        return loss

    def _note_values(self):
        self._seen = {parameter: (parameter._version, parameter.data_ptr()) for parameter in self._numbers}

    def _take_changes(self):
        """Parameters that were written since the last step begin anew from their values. In-place writes
        through parameter.data are not seen: torch does not count them."""
        for parameter, number in self._numbers.items():
            if self._seen[parameter] != (parameter._version, parameter.data_ptr()):
                self._write(number, "weight", parameter, parameter.dtype)

    def _kinds(self, parameter):
        """{torch's name: (kind, dtype, shape)} of the state that a parameter has."""
        sixteen = parameter.dtype != torch.float32
        kinds = {name: kind for name, kind in _KINDS.items() if kind != "master" or sixteen}
        if self._formats["moments"] == "8bit":
            kinds.update(_SCALES)
        scales = (-(-parameter.numel() // _SCALED_ELEMS),)
        return {name: (kind, _KEPT[self._session.kind_dtype(self._numbers[parameter], kind)],
                       scales if name in _SCALES else parameter.shape) for name, kind in kinds.items()}

    def _state_of(self, parameter, step):
        entry = {"step": step.clone()}
        for name, (kind, dtype, shape) in self._kinds(parameter).items():
            entry[name] = torch.empty(shape, dtype=dtype)
            self._session.read(self._numbers[parameter], kind, entry[name].data_ptr(), entry[name].numel())
        return entry

    def state_dict(self):
        """In torch's form: step, exp_avg and exp_avg_sq of each parameter; with 16 bits its master, too. 8-bit moments
        are codes, with exp_avg_scale and exp_avg_sq_scale next to them."""
        state = super().state_dict()
        step = torch.tensor(float(self._session.stats()["updates"]))
        state["state"] = {i: self._state_of(parameter, step) for i, parameter in enumerate(self._numbers)}
        return state

    def load_state_dict(self, state_dict):
        """torch's form, also of torch.optim.AdamW: one number of steps for all parameters. Load the model's
        parameters first: a parameter of 16 bits whose state has no master begins with one equal to it."""
        states = state_dict["state"]
        steps = {float(entry["step"]) for entry in states.values()}
        if len(steps) > 1:
            raise InputError(f"the state has different numbers of steps: {sorted(steps)}")
        if states and len(states) != len(self._numbers):
            raise InputError(f"the state has {len(states)} parameters and the optimizer {len(self._numbers)}")
        for i, parameter in enumerate(self._numbers if states else ()):
            if i not in states:
                raise InputError(f"the state has no parameter {i}")
            for name, (_, dtype, shape) in self._kinds(parameter).items():
                self._check_entry(states[i], name, dtype, shape)
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        for parameter, number in self._numbers.items():
            self._write(number, "weight", parameter, parameter.dtype)
        for i, (parameter, number) in enumerate(self._numbers.items() if states else ()):
            for name, (kind, dtype, _) in self._kinds(parameter).items():
                if name in states[i]:
                    self._write(number, kind, states[i][name], dtype)
        self._note_values()
        _library.call("sluice_session_set_updates", self._session._handle, int(steps.pop()) if steps else 0)

    @staticmethod
    def _check_entry(entry, name, dtype, shape):
        """Codes mean nothing without their scales, so 8-bit moments are never converted."""
        if name not in entry:
            if name in _SCALES:
                raise InputError(f"the state has no {name}: 8-bit moments are loaded from those of 8 bits")
            return
        if entry[name].shape != torch.Size(shape):
            raise InputError(f"{name} has the shape {tuple(entry[name].shape)}, not {tuple(shape)}")
        if (entry[name].dtype == torch.uint8) != (dtype == torch.uint8):
            raise InputError(f"{name} is {entry[name].dtype}, and this optimizer keeps {dtype}; make one with the moments "
                             "of the state")

    def _write(self, number, kind, tensor, dtype):
        """Writes a tensor as it is kept. A copy: a parameter's memory may be the one that is written."""
        copy = tensor.detach().to(device="cpu", dtype=dtype, copy=True).contiguous()
        self._session.write(number, kind, copy.data_ptr(), copy.numel())

    def stats(self):
        """Bytes that the session holds, by tier, and its updates."""
        return self._session.stats()
