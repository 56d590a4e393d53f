"""Optimizers for PyTorch, with their state in pinned memory or on NVMe.

    optimizer = sluice.optim.AdamW(model.parameters(), lr=1e-3, state="storage", storage="/nvme")

Parameters on the CPU move into Sluice's pinned memory: they keep identity, shape and values, and their
storage is the optimizer's from then on. Parameters on a GPU stay there, and are copied after each step.
"""
import ctypes

import torch

from . import Engine, InputError, Session, _library

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _tensor_at(address, like, session, dtype=None):
    """A tensor of the shape of `like` over memory of the session, which it keeps alive."""
    dtype = dtype or like.dtype
    count = like.numel()
    memory = (ctypes.c_byte * (count * torch.empty((), dtype=dtype).element_size())).from_address(address)
    memory.session = session
    return torch.frombuffer(memory, dtype=dtype, count=count).view(like.shape)


class AdamW(torch.optim.Optimizer):
    """AdamW in Sluice's own arithmetic (docs/design/arithmetic.md), which differs from torch's in the last
    bits. state: "auto", "pinned" or "storage"; moments: "fp32" or "bf16"; split: bf16 parameters keep a
    16-bit remainder in place of an fp32 master. Every parameter needs a gradient in every step."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, state="auto",
                 moments="fp32", split=False, engine=None, storage=()):
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
            self._session.set_group(g, **self._settings(group))
            for p, parameter in enumerate(group["params"]):
                if parameter.grad is None:
                    raise InputError(f"parameter {p} of group {g} has no gradient")
                gradient = parameter.grad.to(device="cpu", dtype=parameter.dtype).contiguous()
                self._session.give_gradient(self._numbers[parameter], gradient.data_ptr())
        self._session.update()
        for parameter, home in self._homes.items():
            if parameter.data_ptr() != home.data_ptr():
                parameter.copy_(home)
        return loss

    def _moment(self, parameter, kind):
        number = self._numbers[parameter]
        dtype = torch.float32 if self._session.kind_dtype(number, kind) == "fp32" else torch.bfloat16
        moment = torch.empty(parameter.shape, dtype=dtype)
        self._session.read(number, kind, moment.data_ptr(), moment.numel())
        return moment

    def state_dict(self):
        """In torch's form: step, exp_avg and exp_avg_sq of each parameter."""
        state = super().state_dict()
        step = torch.tensor(float(self._session.stats()["updates"]))
        state["state"] = {i: {"step": step.clone(), "exp_avg": self._moment(parameter, "moment1"),
                              "exp_avg_sq": self._moment(parameter, "moment2")}
                          for i, parameter in enumerate(self._numbers)}
        return state

    def load_state_dict(self, state_dict):
        """torch's form, also of torch.optim.AdamW: one number of steps for all parameters."""
        states = state_dict["state"]
        steps = {float(entry["step"]) for entry in states.values()}
        if len(steps) > 1:
            raise InputError(f"the state has different numbers of steps: {sorted(steps)}")
        if states and len(states) != len(self._numbers):
            raise InputError(f"the state has {len(states)} parameters and the optimizer {len(self._numbers)}")
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        for entry, (parameter, number) in zip(states.values(), self._numbers.items()):
            for kind, name in (("moment1", "exp_avg"), ("moment2", "exp_avg_sq")):
                kept = torch.float32 if self._session.kind_dtype(number, kind) == "fp32" else torch.bfloat16
                moment = entry[name].detach().to(device="cpu", dtype=kept).contiguous()
                if moment.shape != parameter.shape:
                    raise InputError(f"{name} has the shape {tuple(moment.shape)}, not {tuple(parameter.shape)}")
                self._session.write(number, kind, moment.data_ptr(), moment.numel())
        _library.call("sluice_set_updates", self._session._handle, int(steps.pop()) if steps else 0)

    def stats(self):
        """Bytes that the session holds, by tier, and its updates."""
        return self._session.stats()
