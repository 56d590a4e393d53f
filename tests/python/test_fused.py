#!/usr/bin/env python3
"""test_fused.py DIRECTORY: AdamW(fused=True) of an offloaded model has plain PyTorch's bits after 1,000 steps, for
sizes from 1 to 100,003; and the distance of sluice.optim.AdamW from it. Run by tools/test --torch, once for each
instruction set: ATEN_CPU_CAPABILITY picks PyTorch's kernels before torch is loaded."""
import os
import pathlib
import sys
import unittest

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import sluice  # noqa: E402  (the path comes first)
import sluice.optim  # noqa: E402

DIRECTORY = sys.argv[1]
STEPS = 1000
# PyTorch's kernel takes 16 or 32 elements at once and the rest of a tensor one by one, and cuts large tensors
# among its threads.
SIZES = [*range(1, 50), 63, 64, 65, 127, 129, 1000, 1023, 4095, 4096, 4097, 32768, 32771, 65537, 100003]
GROUPS = 9  # units of the model


class Block(torch.nn.Module):
    def __init__(self, sizes, dtype, generator):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for size in sizes)

    def forward(self):
        """A module that can be called is a unit."""
        return [weight.sum() for weight in self.weights]


class Net(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.layers = torch.nn.ModuleList(Block(SIZES[group::GROUPS], dtype, generator) for group in range(GROUPS))


def gradients(step, count):
    """Gradients of very different magnitudes, some of them zero."""
    generator = torch.Generator().manual_seed(step)
    values = torch.randn(count, generator=generator)
    values *= torch.exp2(torch.randint(-30, 6, (count,), generator=generator).float())
    values[torch.randint(0, count, (count // 50,), generator=generator)] = 0
    return values


def train(parameters, optimizer, steps=STEPS):
    parameters = list(parameters)
    count = sum(parameter.numel() for parameter in parameters)
    for step in range(steps):
        values = gradients(step, count)
        for parameter, value in zip(parameters, values.split([parameter.numel() for parameter in parameters])):
            parameter.grad = value.to(parameter.dtype)
        optimizer.step()


def fused(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1, fused=True)


class Fused(unittest.TestCase):
    def test_the_kernels_are_those_that_were_asked_for(self):
        wanted = os.environ.get("ATEN_CPU_CAPABILITY", "default").upper()
        self.assertIn(wanted, ("DEFAULT", torch.backends.cpu.get_cpu_capability()))
        print(f"PyTorch's kernels: {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads")

    def test_a_thousand_steps_have_torch_bits(self):
        for dtype in (torch.float32, torch.bfloat16):
            plain = Net(dtype)
            optimizer = fused(plain)
            train(plain.parameters(), optimizer)
            for weights in ("pinned", "storage"):
                with self.subTest(dtype=dtype, weights=weights):
                    net = Net(dtype)
                    other = fused(net)
                    sluice.offload(net, other, {"device": "4MiB", "pinned": "64MiB", "storage": DIRECTORY,
                                                "storage_bytes": "64MiB", "weights": weights, "state": "storage"})
                    train(net.parameters(), other)
                    self.compare(plain, net, optimizer, other)

    def compare(self, plain, net, optimizer, other):
        for (name, a), b in zip(plain.state_dict().items(), net.state_dict().values()):
            self.assertTrue(torch.equal(a, b), name)
        expected, found = optimizer.state_dict()["state"], other.state_dict()["state"]
        self.assertEqual(list(expected), list(found))
        for number, entry in expected.items():
            self.assertEqual(list(entry), list(found[number]))
            for key, value in entry.items():
                self.assertTrue(torch.equal(value, found[number][key]), f"{key} of parameter {number}")

    def test_the_distance_of_our_own_rule(self):
        """Ours uses no fused multiply-add and divides in another order (docs/decisions/090-no-rule-of-torchs.md)."""
        sizes = (1, 17, 1000, 100003)
        results = []
        for ours in (False, True):
            parameters = Block(sizes, torch.float32, torch.Generator().manual_seed(1)).weights
            settings = {"lr": 1e-3, "weight_decay": 0.1}
            if ours:
                engine = sluice.Engine(device_bytes=1 << 20, pinned_bytes=64 << 20, threads=1)
                optimizer = sluice.optim.AdamW(parameters, state="pinned", engine=engine, **settings)
            else:
                optimizer = torch.optim.AdamW(parameters, fused=True, **settings)
            train(parameters, optimizer)
            results.append(torch.cat([parameter.detach().double() for parameter in parameters]))
        distance = (results[0] - results[1]).abs()
        moved = (results[0] - torch.cat([parameter.detach().double() for parameter in Block(
            sizes, torch.float32, torch.Generator().manual_seed(1)).weights])).abs()
        print(f"own rule beside fused AdamW after {STEPS} steps: {(distance > 0).double().mean().item():.1%} of weights "
              f"differ, by {distance.max().item():.2e} at most; weights moved by {moved.mean().item():.2e} on average")
        self.assertGreater(distance.max().item(), 0)
        # 1 - lr * decay, rounded once to fp32, moves a weight by up to 2^-25 of itself in each step.
        self.assertLess((distance / results[0].abs().clamp_min(1)).max().item(), STEPS * 2.0**-24)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
