#!/usr/bin/env python3
"""Runs torch's own optimizers on small tensors for 1,000 steps and writes the results: the golden
values that tests/kernels compares this project's optimizers with.

    $(tools/bench/peers --python) tools/bench/torch_optimizers.py \
        tests/kernels/data/torch_optimizers.txt

Weights and gradients are functions of (tensor, step, index) that any language computes exactly.
HEADER below, the first lines of the file, defines them. Every optimizer runs twice, with all
tensors and states in float32 and in float64. Needs only torch 2.9 or later, one thread, a minute.
"""
import importlib
import sys

import torch

SHAPES = [(48, 96), (96,), (33, 7)]
STEPS = (1, 10, 100, 1000)
SAMPLES = 24

HEADER = """\
Golden values of optimizers, by torch {version}, written by tools/bench/torch_optimizers.py.
All integers below are 32 bits, unsigned, and wrap.
  mix(x):  x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16
  word(t, s, i) = mix(mix(mix(t + 1) + s) + i)       t tensor, s step, i index (row-major)
  centred(w) = int(w >> 10) - 2097152                signed
  weight before step 1 = centred(w) * 2^-21 * 2^-(w & 7)          w = word(t, 0, i)
  gradient of step s = (centred(w) + floor(centred(d) / 4)) * 2^-21 * 2^-(w & 7)
                       w = word(t, s, i), d = word(t, 0x80000000, i); 0 where i % 29 == 28
So all are exact in float32, and the gradients of an element are noise about a mean of its own.
Lines, fields parted by one space, numbers as C's hex floats, hyperparameters in decimals:
  tensor T ROWS COLS                    COLS 0: a vector of ROWS elements
  optimizer NAME KEY=VALUE ...          torch.optim's names
  after S tensor T                      the weights of T after step S under that optimizer:
  I F32 F64                             element I where all arithmetic is float32, where float64
  sum F32 F64                           over all elements of T, added in float64
  squares F32 F64                       of their squares, likewise
adam is Adam with L2 decay. Adafactor's eps1 (torch's default: the dtype's epsilon) is that of
float32 in both columns.
Newton-Schulz in muon and muon_match_rms is torch's, in bfloat16 (both columns: their difference is
what rounding does); muon_exact is the same optimizer with the iteration in the column's dtype.
No foreach, no fused implementation: one loop over tensors, as torch writes it."""


def mix(x):
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def words(tensor, step, elems):
    """word(tensor, step, 0 .. elems - 1) as int64."""
    key = mix((mix(tensor + 1) + step) & 0xFFFFFFFF)
    return mix((torch.arange(elems, dtype=torch.int64) + key) & 0xFFFFFFFF)


def centred(word):
    return (word >> 10) - (1 << 21)


def scaled(integers, word):
    return integers.double() * 2.0**-21 * torch.pow(torch.tensor(2.0, dtype=torch.float64),
                                                    -(word & 7).double())


def initial_weight(tensor, shape):
    word = words(tensor, 0, torch.Size(shape).numel())
    return scaled(centred(word), word).reshape(shape)


def gradient(tensor, step, shape):
    elems = torch.Size(shape).numel()
    word = words(tensor, step, elems)
    drift = centred(words(tensor, 0x80000000, elems)) >> 2
    value = scaled(centred(word) + drift, word)
    value[28::29] = 0
    return value.reshape(shape)


def orthogonal_in_its_own_dtype(grad, coefficients, steps, eps):
    """Newton-Schulz as torch.optim.Muon iterates it, without its cast to bfloat16."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
SGD = {"lr": 1e-3, "momentum": 0.9, "dampening": 0.0, "weight_decay": 1e-2}
MUON = {"lr": 1e-3, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True,
        "ns_coefficients": (3.4445, -4.775, 2.0315), "eps": 1e-7, "ns_steps": 5}
LOOP = {"foreach": False}
# Name, class, hyperparameters, further arguments (they choose an implementation, not arithmetic).
OPTIMIZERS = [
    ("adamw", torch.optim.AdamW, ADAM, LOOP | {"fused": False}),
    ("adam", torch.optim.Adam, ADAM, LOOP | {"fused": False}),
    ("sgd_momentum", torch.optim.SGD, SGD | {"nesterov": False}, LOOP | {"fused": False}),
    ("sgd_nesterov", torch.optim.SGD, SGD | {"nesterov": True}, LOOP | {"fused": False}),
    ("adafactor", torch.optim.Adafactor,
     {"lr": 1e-2, "beta2_decay": -0.8, "eps": (2.0**-23, 1e-3), "d": 1.0, "weight_decay": 1e-2},
     LOOP),
    ("muon", torch.optim.Muon, MUON | {"adjust_lr_fn": "original"}, {}),
    ("muon_match_rms", torch.optim.Muon, MUON | {"adjust_lr_fn": "match_rms_adamw"}, {}),
    ("muon_exact", torch.optim.Muon, MUON | {"adjust_lr_fn": "original"}, {}),
]


def run(name, make, arguments, tensors, dtype):
    """{step: [weights in float64]} of the steps that are recorded."""
    weights = [torch.nn.Parameter(initial_weight(t, SHAPES[t]).to(dtype)) for t in tensors]
    optimizer = make(weights, **arguments)
    module = importlib.import_module("torch.optim._muon")  # the class's own: torch hides it
    of_torch = module._zeropower_via_newtonschulz
    if name == "muon_exact":
        module._zeropower_via_newtonschulz = orthogonal_in_its_own_dtype
    recorded = {}
    for step in range(1, STEPS[-1] + 1):
        for t, weight in zip(tensors, weights):
            weight.grad = gradient(t, step, SHAPES[t]).to(dtype)
        optimizer.step()
        if step in STEPS:
            recorded[step] = [weight.detach().double().clone() for weight in weights]
    module._zeropower_via_newtonschulz = of_torch
    return recorded


def number(value):
    """A hex float without the zeros at its end."""
    mantissa, exponent = float(value).hex().split("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}p{exponent}"


def hyperparameter(value):
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def samples(elems):
    """Ends, places between them, and one element that never has a gradient."""
    return sorted({j * (elems - 1) // (SAMPLES - 1) for j in range(SAMPLES)} | {28})


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, end="")
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    if not hasattr(torch.optim, "Muon"):
        sys.exit(f"torch {torch.__version__} has no torch.optim.Muon: 2.9 or later is needed")
    torch.set_num_threads(1)
    lines = ["# " + line for line in HEADER.format(version=torch.__version__).splitlines()]
    for t, shape in enumerate(SHAPES):
        lines.append(f"tensor {t} {shape[0]} {shape[1] if len(shape) == 2 else 0}")
    for name, make, settings, implementation in OPTIMIZERS:
        tensors = [t for t, shape in enumerate(SHAPES)
                   if make is not torch.optim.Muon or len(shape) == 2]
        lines.append(" ".join(["optimizer", name] + [f"{key}={hyperparameter(value)}"
                                                     for key, value in settings.items()]))
        f32, f64 = (run(name, make, settings | implementation, tensors, dtype)
                    for dtype in (torch.float32, torch.float64))
        for step in STEPS:
            for t, single, double in zip(tensors, f32[step], f64[step]):
                columns = single.flatten(), double.flatten()
                lines.append(f"after {step} tensor {t}")
                rows = {i: [column[i] for column in columns] for i in samples(columns[0].numel())}
                rows["sum"] = [column.sum() for column in columns]
                rows["squares"] = [column.square().sum() for column in columns]
                lines += [" ".join([str(place), *map(number, row)]) for place, row in rows.items()]
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
