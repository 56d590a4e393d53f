#!/usr/bin/env python3
"""test_offload_data.py DIRECTORY: programs that write weights through parameter.data and its like, and share their memory,
against plain PyTorch, to the bit: cases by name, and random nets with random writes at random times. Each net has plain
PyTorch's bits or is refused. SLUICE_FUZZ_NETS is the number of nets, SLUICE_FUZZ_SEED the first. Run by tools/test."""
import os
import pathlib
import random
import sys
import unittest

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import sluice  # noqa: E402  (the path comes first)

DIRECTORY = sys.argv[1]
NETS, SEED = int(os.environ.get("SLUICE_FUZZ_NETS", "6")), int(os.environ.get("SLUICE_FUZZ_SEED", "1"))
WIDTH = 8
PINNED = {"device": "32MiB", "pinned": "64MiB", "threads": 1}
STORED = {**PINNED, "storage": DIRECTORY, "storage_bytes": "64MiB", "weights": "storage", "state": "storage"}
PLACES = {"pinned": PINNED, "stored": STORED, "state stored": {**STORED, "weights": "pinned"}}


class Momentum(nn.Module):
    """The key's weights are averages of the query's, assigned in its forward pass."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for q, k in zip(self.query.parameters(), self.key.parameters()):
                k.data = k.data * 0.9 + q.data * 0.1
            target = self.key(x)
        return self.query(x) + target


class Block(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way = way
        self.up, self.down, self.norm = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def inner(self, x):
        return self.down(torch.tanh(self.up(self.norm(x))))

    def forward(self, x):
        if self.way == "clamps":
            self.up.weight.data.clamp_(-0.2, 0.2)
        if self.way == "assigns":
            self.down.weight.data = self.down.weight.data * 0.95
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.way == "checkpoint" else self.inner(x))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x.view(-1, 1, 2, WIDTH // 2)).mean(1).view(x.shape)


class Rows(nn.Module):
    """An embedding, with hooks that read or write its weight."""

    def __init__(self, way):
        super().__init__()
        self.rows = nn.Embedding(5, WIDTH)
        if way == "hook writes":
            self.rows.register_forward_pre_hook(lambda module, given: module.weight.data.mul_(0.99) and None)
        if way == "hook reads":
            self.rows.register_forward_hook(lambda module, given, out: out * module.weight.square().mean())

    def forward(self, x):
        return x + self.rows(torch.arange(len(x)) % 5)


class Net(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.blocks = nn.ModuleList(Block(draw.choice(["", "", "clamps", "assigns", "checkpoint"])) for _ in range(2))
        kinds = [Momentum, Convolution, lambda: Rows(draw.choice(["", "hook writes", "hook reads"])),
                 lambda: nn.Linear(WIDTH, WIDTH), lambda: nn.Linear(WIDTH, WIDTH, bias=False)]
        self.parts = nn.ModuleDict({str(i): draw.choice(kinds)() for i in range(4)})
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.twice = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        if draw.random() < 0.5:
            self.twice[1].weight = self.twice[0].weight
        if draw.random() < 0.3:
            self.tied.requires_grad_(False)

    def forward(self, x):
        for part in [self.blocks[0], *self.parts.values(), self.blocks[1], self.tied, self.twice]:
            x = torch.tanh(part(x))
        return x


class Writer:
    """Random writes at random times, the same for plain and offloaded nets."""

    def __init__(self, model, optimizer, draw, late):
        self.model, self.optimizer, self.draw, self.late = model, optimizer, draw, late
        self.kept, self.seen, self.generator = [], [], torch.Generator().manual_seed(7)
        self.average = {}

    def pick(self):
        return self.draw.choice(list(self.model.parameters()))

    def noise(self, like):
        return torch.randn(like.shape, generator=self.generator) * 0.3

    def write(self, counted=True):
        p, number = self.pick(), self.draw.random()
        ways = [self.scale, self.assign, self.clone, self.copy, self.hold, self.write_held, self.return_held, self.exchange,
                self.vector, self.tie, self.swap_two, self.turn, self.state, self.read, self.same]
        ways += [self.counted, self.set_, self.detached] if counted else []
        self.draw.choice(ways)(p, 0.5 + number / 2)

    def scale(self, p, c):
        p.data.mul_(c)

    def assign(self, p, c):
        p.data = p.data * c

    def clone(self, p, c):
        p.data = p.data.clone()

    def copy(self, p, c):
        p.data.copy_(self.noise(p))

    def hold(self, p, c):
        self.kept.append((p, p.data))
        if c > 0.7:
            p.data = self.noise(p)

    def write_held(self, p, c):
        if self.kept:
            self.draw.choice(self.kept)[1].mul_(c)

    def return_held(self, p, c):
        if self.kept:
            q, data = self.kept.pop(self.draw.randrange(len(self.kept)))
            q.data = data

    def exchange(self, p, c):
        self.average.setdefault(id(p), p.data.clone() * 0.5)
        p.data, self.average[id(p)] = self.average[id(p)], p.data

    def vector(self, p, c):
        module = self.draw.choice([self.model.tied, self.model.twice, self.model.blocks[0]])
        with torch.no_grad():
            flat = torch.nn.utils.parameters_to_vector(module.parameters()) * c
            torch.nn.utils.vector_to_parameters(flat, module.parameters())
        if c > 0.9:
            self.kept_flat = flat

    def pair(self, p):
        return self.draw.choice([q for q in self.model.parameters() if q.shape == p.shape])

    def tie(self, p, c):
        q = self.pair(p)
        if c > 0.9:
            p.data = q.data

    def swap_two(self, p, c):
        q = self.pair(p)
        p.data, q.data = q.data, p.data

    def turn(self, p, c):
        if p.dim() == 2:
            p.data = p.data.t().contiguous().t()

    def state(self, p, c):
        for value in list(self.model.state_dict().values())[:3]:
            value.data.mul_(c)

    def read(self, p, c):
        with torch.no_grad():
            self.seen += [p.norm().item(), p.data.sum().item(), *(data.sum().item() for _, data in self.kept)]

    def same(self, p, c):
        p.data = p.data.to(torch.float32)
        self.model.to(torch.float32)

    def counted(self, p, c):
        with torch.no_grad():
            p.mul_(c)

    def set_(self, p, c):
        with torch.no_grad():
            p.set_(self.noise(p))

    def detached(self, p, c):
        p.detach().mul_(c)


def run_net(seed, config):
    """All numbers of a training run, or the refusal or error."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model = Net(draw)
    parameters = [p for p in model.parameters()]
    late = parameters[-3:] if draw.random() < 0.3 else []
    kind = draw.choice([torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
    optimizer = kind([p for p in parameters if not any(p is q for q in late)], lr=0.01)
    writer = Writer(model, optimizer, draw, late)
    shared = draw.random()
    if shared < 0.2:
        writer.kept += [(p, p.data) for p in parameters[:4]]
    if shared > 0.9:
        writer.vector(parameters[0], 1.0)
    rate = draw.choice([0, 0.2, 0.6])
    try:
        if config is not None:
            sluice.offload(model, optimizer, config)
        losses = []
        for step in range(6):
            if draw.random() < rate:
                writer.write()
            if late and step == 3:
                optimizer.add_param_group({"params": late, "lr": 0.02})
            module = draw.choice([m for m in model.modules() if m is not model])
            handle = None
            if draw.random() < rate:
                handle = module.register_forward_pre_hook(lambda *_: writer.write(False))
            loss = model(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))).square().mean()
            if handle is not None:
                handle.remove()
            if draw.random() < rate:
                writer.write(False)
            if draw.random() < rate / 2:
                loss.register_hook(lambda gradient: writer.write(False))
            loss.backward()
            losses.append(loss.item())
            if draw.random() < rate:
                writer.write()
            optimizer.step()
            losses += [None if p.grad is None else p.grad.clone() for p in parameters]
            optimizer.zero_grad()
            if draw.random() < 0.3:
                with torch.no_grad():
                    losses.append(model.eval()(torch.ones(2, WIDTH)))
                model.train()
        return [losses, writer.seen, [p.data.clone() for p in parameters], [data.clone() for _, data in writer.kept]], None
    except (RuntimeError, ValueError, sluice.Error) as error:
        return None, error


def same(a, b):
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.equal(a, b)
    return a == b or a != a and b != b


def small(width=WIDTH):
    return nn.Sequential(nn.Linear(WIDTH, width), nn.Tanh(), nn.Linear(width, WIDTH))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x):
        x = x[:, :3].repeat(1, 36).view(-1, 3, 6, 6)
        return self.second(torch.relu(self.first(x)))


class Named(unittest.TestCase):
    def run_case(self, config, make, body, steps):
        torch.manual_seed(3)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        if config is not None:
            sluice.offload(model, optimizer, config)
        kept, found = {}, []
        for step in range(steps):
            found.append(body(model, optimizer, step, kept))
        return found + [p.data.clone() for p in model.parameters()]

    def compare(self, body, make=small, steps=7):
        expected = self.run_case(None, make, body, steps)
        for place, config in PLACES.items():
            with self.subTest(place=place):
                self.assertTrue(same(expected, self.run_case(config, make, body, steps)))

    @staticmethod
    def train(model, optimizer, step, between=lambda: None):
        loss = model(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))).square().mean()
        between()
        optimizer.zero_grad()
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        return [loss.item(), gradients]

    def test_momentum_in_forward(self):
        self.compare(self.momentum, Momentum)

    def momentum(self, model, optimizer, step, kept):
        return self.train(model, optimizer, step)

    def test_assignments_between_forward_and_backward(self):
        def assign(model, optimizer, step, kept):
            def between():
                for p in model.parameters():
                    p.data = p.data * 0.5
            return self.train(model, optimizer, step, between)

        def late(model, optimizer, step, kept):
            def between():
                for p in model.parameters():
                    p.data.mul_(0.5) if step >= 5 else None
            return self.train(model, optimizer, step, between)

        def undone(model, optimizer, step, kept):
            """Fast weights: the forward pass sees others than the backward pass."""
            backups = [p.data for p in model.parameters()]
            for p in model.parameters():
                p.data = p.data + 0.1

            def between():
                for p, backup in zip(model.parameters(), backups):
                    p.data = backup
            return self.train(model, optimizer, step, between)
        for body in (assign, late, undone):
            with self.subTest(body.__name__):
                self.compare(body)

    def test_averages_for_evaluation(self):
        for form in ("backup", "clone", "exchange", "copy", "exchange of two models"):
            def body(model, optimizer, step, kept, form=form):
                numbers = self.train(model, optimizer, step)
                for name, p in model.named_parameters():
                    average = kept.setdefault(name, p.data.clone())
                    kept[name] = 0.9 * average + 0.1 * p.data.clone()
                for there in (True, False):
                    for name, p in model.named_parameters():
                        if form == "exchange":
                            p.data, kept[name] = kept[name], p.data
                        elif form == "copy":
                            swapped = p.data.clone()
                            p.data.copy_(kept[name])
                            kept[name] = swapped
                        elif there:
                            kept["backup " + name] = p.data.clone() if form == "clone" else p.data
                            p.data = kept[name]
                        else:
                            p.data = kept["backup " + name]
                    numbers += [value.clone() for value in model.state_dict().values()]
                    with torch.no_grad():
                        numbers.append(model(torch.ones(1, WIDTH)))
                return numbers
            with self.subTest(form):
                self.compare(body)

    def test_slow_weights_that_share_memory(self):
        def body(model, optimizer, step, kept):
            numbers = self.train(model, optimizer, step)
            if step % 2:
                for name, p in model.named_parameters():
                    slow = kept.setdefault(name, torch.zeros_like(p.data))
                    slow.add_(p.data - slow, alpha=0.5)
                    p.data = slow
            return numbers, [value.clone() for value in kept.values()]
        self.compare(body)

    def test_flat_vectors(self):
        def body(model, optimizer, step, kept):
            with torch.no_grad():
                flat = torch.nn.utils.parameters_to_vector(model.parameters())
                torch.nn.utils.vector_to_parameters(flat * 0.9, model.parameters())
            return self.train(model, optimizer, step)
        self.compare(body)

    def test_assigned_tensors_come_home(self):
        for config in (PINNED, STORED):
            torch.manual_seed(3)
            model = small()
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            sluice.offload(model, optimizer, config)
            weights = optimizer._sluice_stepper.offloaded.weights
            for p in model.parameters():
                p.data = p.data * 0.5
            kept = model[0].weight.data = torch.ones(WIDTH, WIDTH)
            self.train(model, optimizer, 1)
            self.assertEqual([weight.name for weight in weights.displaced], ["0.weight"])
            del kept
            self.train(model, optimizer, 2)
            self.assertEqual(list(weights.displaced), [])

    def test_memory_formats(self):
        def body(model, optimizer, step, kept):
            if step == (2 if kept.get("late") else 0):
                model.to(memory_format=torch.channels_last)
            numbers = self.train(model, optimizer, step)
            return numbers, [p.stride() for p in model.parameters()]
        self.compare(body, Images)
        self.compare(lambda model, optimizer, step, kept: body(model, optimizer, step, {"late": True}), Images)

    def test_memory_shared_before(self):
        def make():
            model = small()
            model.list = [p.data for p in model.parameters()]
            return model

        def body(model, optimizer, step, kept):
            numbers = self.train(model, optimizer, step)
            model.list[0].mul_(0.9)
            return numbers, [data.norm().item() for data in model.list]
        expected = self.run_case(None, make, body, 4)
        self.assertTrue(same(expected, self.run_case(PINNED, make, body, 4)))
        with self.assertRaisesRegex(RuntimeError, "rests on storage, and this tensor stands for it"):
            self.run_case(STORED, make, body, 4)
        model = small()
        before = model[2].bias.data.clone()
        flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        torch.nn.utils.vector_to_parameters(flat, model.parameters())
        for place in (PINNED, STORED):
            with self.assertRaisesRegex(sluice.InputError, "shares memory with another tensor"):
                sluice.offload(model, None, place)
        self.assertTrue(torch.equal(before, model[2].bias.data))
        array = model[0].weight.detach().clone()
        model[0].weight.data = array
        numbers = model[0].weight.detach().numpy()
        del array, flat
        with self.assertRaisesRegex(sluice.InputError, "or with an array over one"):
            sluice.offload(nn.Sequential(model[0]), None, PINNED)
        del numbers

    def test_data_of_before_come_back(self):
        """A tensor over the home of a weight on storage has no memory, but says which weight it is."""
        def make():
            model = small()
            model.list = [p.data for p in model.parameters()]
            return model

        def body(model, optimizer, step, kept):
            for p, data in zip(model.parameters(), model.list):
                p.data = data
            return self.train(model, optimizer, step)
        self.compare(body, make, 4)

    def test_arrays_below_parameters(self):
        """Wherever the program holds them; memory of a loader that nobody else holds is taken."""
        import numpy
        def generate(array):
            yield
            yield array
        holders = {"local": lambda array: array, "view": lambda array: array[::-1, 1:], "in a tuple": lambda array: (1, (array,)),
                   "in a dictionary": lambda array: {"a": {"b": array}}, "closure": lambda array: lambda: array,
                   "generator": generate}
        for name, hold in holders.items():
            model = nn.Linear(WIDTH, WIDTH)

            def make():
                array = numpy.ones((WIDTH, WIDTH), dtype=numpy.float32)
                model.weight = nn.Parameter(torch.from_numpy(array))
                return hold(array)
            kept = make()
            with self.subTest(name):
                with self.assertRaisesRegex(sluice.InputError, "'weight' shares memory with an object .* ndarray"):
                    sluice.offload(model, None, STORED)
                del kept
                sluice.offload(model, None, STORED)
                model(torch.ones(1, WIDTH)).sum().backward()
        memory = bytearray(4 * WIDTH * WIDTH)
        model = nn.Linear(WIDTH, WIDTH)
        model.weight.data = torch.frombuffer(memory, dtype=torch.float32).view(WIDTH, WIDTH)
        with self.assertRaisesRegex(sluice.InputError, "of type bytearray"):
            sluice.offload(model, None, PINNED)
        self.assertEqual(model(torch.ones(1, WIDTH)).shape, (1, WIDTH))

    def test_views_that_modules_keep(self):
        class Keeps(nn.Linear):
            def forward(self, x):
                self.kept = self.weight.t()
                return x @ self.kept
        for config in (PINNED, STORED):
            model = Keeps(WIDTH, WIDTH)
            sluice.offload(model, None, config)
            with self.assertRaisesRegex(sluice.InputError, "'Keeps' keeps a tensor over the memory of parameter 'weight'"):
                model(torch.ones(2, WIDTH))

    def test_views_that_recomputed_modules_keep(self):
        """An own backward pass of their loss would read a window that has left."""
        class Squared(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.weight = weight.t()
                ctx.save_for_backward(x)
                return (x @ ctx.weight).square()

            @staticmethod
            def backward(ctx, gradient):
                x, = ctx.saved_tensors
                inner = 2 * gradient * (x @ ctx.weight)
                return inner @ ctx.weight.t(), inner.t() @ x

        class Keeps(nn.Linear):
            def forward(self, x):
                self.loss = Squared.apply(x.detach(), self.weight).mean()
                return super().forward(x)
        for use_reentrant in (True, False):
            for config in (PINNED, STORED):
                model = nn.ModuleList(Keeps(WIDTH, WIDTH) for _ in range(4))
                top = nn.Sequential(*model)
                sluice.offload(top, None, {**config, "device": "4MiB"})
                with self.subTest(use_reentrant=use_reentrant, config=config):
                    with self.assertRaisesRegex(sluice.InputError, "'Keeps' keeps a tensor over the memory of parameter"):
                        x = torch.ones(2, WIDTH, requires_grad=True)
                        checkpoint(nn.Sequential.forward, top, x, use_reentrant=use_reentrant).sum().backward()

    def test_stand_ins_have_no_memory(self):
        stored, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        sluice.offload(stored, None, STORED)
        other.weight.data = stored.weight.data
        with self.assertRaisesRegex(RuntimeError, "rests on storage, and this tensor stands for it"):
            other(torch.ones(1, WIDTH))


class Fuzz(unittest.TestCase):
    def test_random_nets(self):
        counts = {"equal": 0, "refused": 0, "plain fails": 0}
        for seed in range(SEED, SEED + NETS):
            expected, error = run_net(seed, None)
            if error is not None:
                counts["plain fails"] += 1
                continue
            for place, config in PLACES.items():
                found, error = run_net(seed, config)
                if error is not None:
                    is_told = isinstance(error, (sluice.InputError, sluice.Refused)) or "rests on storage" in str(error)
                    with self.subTest(seed=seed, place=place):
                        self.assertTrue(is_told, repr(error))
                    counts["refused"] += is_told
                    if os.environ.get("SLUICE_FUZZ_NETS"):
                        print(seed, place, str(error)[:110])
                    continue
                with self.subTest(seed=seed, place=place):
                    self.assertTrue(same(expected, found), "different")
                    counts["equal"] += 1
        print("random nets:", counts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
