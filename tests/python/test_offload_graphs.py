#!/usr/bin/env python3
"""test_offload_graphs.py DIRECTORY: what programs do with an offloaded model's graphs, weights and passes, against plain
PyTorch, to the bit. Run by tools/test."""
import copy
import dataclasses
import gc
import pathlib
import pickle
import sys
import threading
import types
import unittest
import weakref

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import sluice  # noqa: E402  (the path comes first)

DIRECTORY = sys.argv[1]
WIDTH = 48
# Windows of three units: those of a model below have left when its pass ends.
PINNED = {"device": "6MiB", "pinned": "64MiB"}
STORED = {**PINNED, "storage": DIRECTORY, "storage_bytes": "256MiB", "weights": "storage", "state": "storage"}
PLACES = {"pinned": PINNED, "stored": STORED}


@dataclasses.dataclass
class Output:
    __slots__ = ("inner",)
    inner: object


class Block(torch.nn.Module):
    """mode: what is peculiar of it."""

    def __init__(self, mode):
        super().__init__()
        self.mode = mode
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def inner(self, x):
        return self.down(functional.gelu(self.up(x)))

    def forward(self, x):
        if self.mode == "adds in place":
            x += self.inner(torch.relu(x))
            return x
        if self.mode == "returns a view":
            return self.inner(x).view(x.shape)
        if self.mode == "hidden output":
            return Output([Output(x + self.inner(x))])
        if self.mode == "attribute":
            self.extra = functional.linear(torch.tanh(self.up(x)), self.down.weight).square().mean()
        if self.mode == "remembers":
            self.seen = self.up.weight
        if self.mode == "writes data" or self.mode == "writes data in steps" and self.training:
            self.up.weight.data.clamp_(-0.05, 0.05)
        if self.mode == "writes":
            with torch.no_grad():
                self.up.weight.mul_(0.9)
        if self.mode.startswith("inner checkpoint"):
            return x + checkpoint(self.inner, x, use_reentrant=self.mode.endswith("reentrant"))
        return x + self.inner(x)


class Stack(torch.nn.Module):
    def __init__(self, mode=""):
        super().__init__()
        self.mode = mode
        self.layers = torch.nn.ModuleList(Block(mode) for _ in range(7))
        self.outputs = []

    def forward(self, x):
        x = x * 1.0
        self.outputs = []
        for layer in self.layers:
            if self.mode.startswith("checkpoint"):
                x = checkpoint(layer, x, use_reentrant=self.mode.endswith("reentrant"))
            else:
                x = layer(x)
            if self.mode == "returns a view":
                x.mul_(0.5)
            if isinstance(x, Output):
                x = x.inner[0].inner
            self.outputs.append(x)
        return x


def x_of(step, rows=3):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(step))


def loss_of(model, step):
    return model(x_of(step)).square().mean()


def backward(model, _, step):
    loss = loss_of(model, step)
    loss.backward()
    return loss.item()


class Case(unittest.TestCase):
    def run_steps(self, config, make, body, steps):
        torch.manual_seed(1)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if config is not None:
            sluice.offload(model, optimizer, config)
        found = []
        for step in range(steps):
            optimizer.zero_grad()
            found.append(body(model, optimizer, step))
            found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
            optimizer.step()
        found.append({key: value.clone() for key, value in model.state_dict().items()})
        return found

    def assert_same(self, a, b):
        if isinstance(a, dict):
            self.assertEqual(list(a), list(b))
            a, b = list(a.values()), list(b.values())
        if isinstance(a, (list, tuple)):
            self.assertEqual(len(a), len(b))
            for x, y in zip(a, b):
                self.assert_same(x, y)
        elif isinstance(a, torch.Tensor):
            self.assertTrue(torch.equal(a, b))
        else:
            self.assertEqual(a, b)

    def compare(self, make, body=backward, places=("pinned", "stored"), steps=3):
        """body(model, optimizer, step) is done in each step of a plain model and of offloaded ones."""
        expected = self.run_steps(None, make, body, steps)
        for place in places:
            with self.subTest(place=place):
                self.assert_same(expected, self.run_steps(PLACES[place], make, body, steps))

    def offloaded(self, config=STORED, make=Stack):
        torch.manual_seed(1)
        model = make()
        return sluice.offload(model, torch.optim.AdamW(model.parameters(), lr=1e-2), config)


class Graphs(Case):
    def test_backward_begins_anywhere(self):
        for mode in ("adds in place", "returns a view", "hidden output"):
            with self.subTest(mode):
                self.compare(lambda: Stack(mode))

        def from_inside(model, _, step):
            caught = []
            handle = model.layers[3].up.register_forward_hook(lambda module, given, output: caught.append(output))
            model(x_of(step).requires_grad_())
            handle.remove()
            caught[0].square().mean().backward()
        self.compare(Stack, from_inside)

        def from_attributes(model, _, step):
            loss = loss_of(model, step) * (step != 1) + sum(layer.extra for layer in model.layers)
            (sum(layer.extra for layer in model.layers) if step == 1 else loss).backward()
        self.compare(lambda: Stack("attribute"), from_attributes)

    def test_checkpoints_of_and_in_blocks(self):
        for mode in ("checkpoint", "checkpoint reentrant", "inner checkpoint", "inner checkpoint reentrant"):
            with self.subTest(mode):
                self.compare(lambda: Stack(mode),
                             lambda model, _, step: model(x_of(step).requires_grad_()).sum().backward())

    def test_hooks_of_saved_tensors_see_what_they_saw(self):
        counts = []

        def saved_by_hooks(model, _, step):
            saved = []

            def pack(tensor):
                saved.append(tensor.nelement())
                return tensor.clone()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = loss_of(model, step)
            loss.backward()
            counts.append(len(saved))
            return saved
        self.compare(Stack, saved_by_hooks)
        self.assertGreater(counts[0], 20)

        def moved(model, _, step):
            with torch.autograd.graph.save_on_cpu():
                loss = loss_of(model, step)
            loss.backward()
        self.compare(lambda: Stack("checkpoint"), moved)

    def test_saved_activations_are_checked(self):
        for config in (None, PINNED):
            torch.manual_seed(1)
            model = Stack()
            if config is not None:
                sluice.offload(model, None, config)
            caught = []
            model.layers[2].up.register_forward_hook(lambda module, given, output: caught.append(output))
            loss = loss_of(model, 1)
            with torch.no_grad():
                caught[0].mul_(2)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                loss.backward()

    def test_weights_written_between_forward_and_backward(self):
        def written(model, _, step):
            loss = loss_of(model, step)
            with torch.no_grad():
                model.layers[6 if step else 2].up.weight.mul_(0.5)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                loss.backward()
            model.zero_grad()
            return backward(model, None, step)

        def biases_and_data(model, _, step):
            loss = loss_of(model, step)
            with torch.no_grad():
                model.layers[2].up.bias.mul_(0.5)
            for number in (6, 1):
                model.layers[number].up.weight.data.mul_(0.5)
            loss.backward()
        self.compare(Stack, written)
        self.compare(Stack, biases_and_data)

    def test_gradients_of_chosen_tensors(self):
        def inputs(model, _, step):
            loss_of(model, step).backward(inputs=list(model.parameters())[2:9])

        def grad(model, _, step):
            x = x_of(step).requires_grad_()
            parameters = list(model.parameters())
            found = torch.autograd.grad(model(x).square().mean(), [x, *parameters], allow_unused=True)
            for parameter, gradient in zip(parameters, found[1:]):
                parameter.grad = gradient
            return found[0]
        self.compare(Stack, inputs)
        self.compare(Stack, grad)

    def test_gradients_add_up_in_torchs_order(self):
        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first = torch.nn.Linear(WIDTH, WIDTH, bias=False)
                self.stack = Stack()

            def forward(self, x):
                return functional.linear(self.stack(self.first(x)), self.first.weight.t())

        class Recursive(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
                self.stack = Stack()

            def forward(self, x, depth=2):
                x = self.stack(x @ self.weight)
                return torch.tanh((self(x, depth - 1) if depth else x) @ self.weight)

        def accumulate(model, _, step):
            for part in range(3):
                (loss_of(model, 10 * step + part) + 0.01 * sum(p.square().sum() for p in model.parameters())).backward()
        self.compare(Tied, accumulate, ["pinned"])
        self.compare(Recursive, lambda model, _, step: [backward(model, None, 10 * step + part) for part in range(3)])
        self.compare(lambda: Stack("remembers"), lambda model, _, step: (
            loss_of(model, step) + sum(layer.seen.square().sum() for layer in model.layers)).backward(), ["pinned"])

    def test_hooks_of_gradients(self):
        def hooked(model, _, step):
            handles = [p.register_hook(lambda gradient: gradient * 2) for p in model.parameters()]
            backward(model, None, step)
            for handle in handles:
                handle.remove()
        self.compare(Stack, hooked)

    def test_second_derivatives_and_transforms_are_refused(self):
        for config in (PINNED, STORED):
            model, _ = self.offloaded(config)
            for transform in (torch.func.grad, torch.func.jacrev):
                with self.assertRaisesRegex(sluice.InputError, "torch.func's transforms"):
                    transform(lambda x: model(x).sum())(x_of(1))
            with self.assertRaisesRegex(sluice.InputError, "create_graph=True"):
                torch.autograd.backward(loss_of(model, 1), create_graph=True)
            loss = loss_of(model, 1)
            sluice.restore(model)
            with self.assertRaisesRegex(sluice.InputError, "was restored between"):
                loss.backward()


class Weights(Case):
    def test_views_of_weights_that_modules_return(self):
        class Position(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table = torch.nn.Parameter(torch.randn(8, WIDTH))

            def forward(self, rows):
                return self.table[:rows], self.table

        class Positioned(Stack):
            def __init__(self):
                super().__init__()
                self.position = Position()

            def forward(self, x):
                rows, table = self.position(len(x))
                return super().forward(x + rows) * rows + table.detach()[0]
        self.compare(Positioned, places=["pinned"])

        class Hidden(Position):
            def forward(self, rows):
                return types.SimpleNamespace(view=self.table[:, :rows])
        model, _ = sluice.offload(Hidden(), None, PINNED)
        with self.assertRaisesRegex(sluice.InputError, "'Hidden' returns a view of its weight in an object"):
            model(3)

    def test_modules_that_write_their_weights(self):
        def evaluate_first(model, _, step):
            with torch.no_grad():
                values = [loss_of(model.eval(), 20 + part).item() for part in range(0 if step else 5)]
            model.train()
            return values, backward(model, None, step)
        self.compare(lambda: Stack("writes data"), steps=4)
        self.compare(lambda: Stack("writes data in steps"), evaluate_first)
        self.compare(lambda: Stack("writes"), lambda model, _, step: model(x_of(step).requires_grad_()).sum().backward())
        self.compare(lambda: torch.nn.Sequential(torch.nn.Embedding(30, WIDTH, max_norm=1.0), Stack()),
                     lambda model, _, step: model(torch.arange(step, 20)).square().mean().backward())

    def test_rows_are_written(self):
        def write(model, _, step):
            with torch.no_grad():
                model.layers[0].up.weight[step].zero_()
                model.layers[1].up.weight[:, 2:4][0, 1] = 3.0
                for part in model.layers[2].down.weight.chunk(2):
                    part.add_(0.25)
                model.layers[2].down.weight.t()[1].mul_(0.5)
            model.layers[3].up.weight.data[torch.tensor([1, 2])] = 0.5
            model.layers[4].up.weight.data[1].fill_(1.0)
            return backward(model, None, step)
        self.compare(Stack, write)
        model, optimizer = self.offloaded()
        with torch.no_grad():
            row = model.layers[0].up.weight[0]
            self.assert_same(copy.deepcopy(row), pickle.loads(pickle.dumps(row)))
        backward(model, None, 1)
        optimizer.step()
        with torch.no_grad(), self.assertRaisesRegex(sluice.InputError, "is older than an update"):
            row.zero_()

    def test_conversions(self):
        for config in (PINNED, STORED):
            model, _ = self.offloaded(config)
            before = copy.deepcopy(model.state_dict())
            self.assertIs(model.to(torch.float32).cpu().float(), model)
            self.assert_same(before, model.state_dict())
            for convert in (model.half, model.double):
                with self.assertRaisesRegex(sluice.InputError, "before you convert or move it"):
                    convert()
                    loss_of(model, 1)
                model.float() if config is PINNED else None
            if config is STORED:
                for other in (torch.ones(1), torch.ones(2 * WIDTH, WIDTH, dtype=torch.float64)):
                    with self.assertRaisesRegex(sluice.InputError, "cannot become"):
                        model.layers[0].up.weight.data = other
                self.assert_same(before, model.state_dict())

    def test_shared_memory(self):
        for config, text in ((PINNED, "moved by share_memory"), (STORED, "which cannot be shared")):
            model, _ = self.offloaded(config)
            before = copy.deepcopy(model.state_dict())
            with self.assertRaisesRegex(sluice.InputError, text):
                model.share_memory()
                loss_of(model, 1)
            sluice.restore(model)
            self.assert_same(before, model.state_dict())
            self.assertTrue(torch.isfinite(loss_of(model, 1)))

        def share_state(model, optimizer, step):
            if step == 1:
                for state in optimizer.state_dict()["state"].values():
                    state["exp_avg"].share_memory_()
            return backward(model, None, step)
        self.compare(Stack, share_state)

    def test_tensors_outlive_restore(self):
        for config in (PINNED, STORED):
            model, optimizer = self.offloaded(config)
            backward(model, None, 1)
            optimizer.step()
            kept = [model.state_dict(), optimizer.state_dict(), [p.detach() for p in model.parameters()]]
            expected = copy.deepcopy(kept)
            pager = weakref.ref(optimizer._sluice_stepper.pager)
            sluice.restore(model)
            junk = [torch.full((WIDTH, WIDTH), 7.0) for _ in range(50)]
            self.assert_same(expected, kept)
            del kept, junk
            self.assertIsNone(pager(), "Sluice's memory ends with the last tensor over it")

    def test_containers_without_a_forward(self):
        class Vit(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.ModuleList(
                    [torch.nn.MultiheadAttention(WIDTH, 2), torch.nn.Linear(WIDTH, WIDTH)]) for _ in range(3))
                self.attention = torch.nn.MultiheadAttention(WIDTH, 2)
                self.scales = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(WIDTH)) for _ in range(2))

            def forward(self, x):
                for attention, linear in self.layers:
                    x = linear(x + attention(x, x, x)[0])
                return self.attention(x * self.scales[0], x, x)[0] * self.scales[1]
        self.compare(Vit)
        model, _ = self.offloaded(make=Vit)
        self.assertEqual(sluice.status(model)["units"], 8)


class Passes(Case):
    @staticmethod
    def stop(gradient):
        raise RuntimeError("stop")

    def test_an_exception_in_backward(self):
        def go_on(model, optimizer, step):
            loss = loss_of(model, step)
            model.outputs[3].register_hook(self.stop)
            with self.assertRaisesRegex(RuntimeError, "stop"):
                loss.backward()
            model.zero_grad()
            ours = {id(p) for p in optimizer.param_groups[0]["params"]}
            self.assertEqual(ours, {id(p) for p in model.parameters()})
            self.assertTrue(all(p.grad is None for p in optimizer.param_groups[0]["params"]))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9)
            return backward(model, None, step)
        self.compare(Stack, go_on)

    def test_an_interrupt_in_forward(self):
        def interrupt(module, given):
            raise KeyboardInterrupt

        def go_on(model, optimizer, step):
            handle = model.layers[3].register_forward_pre_hook(interrupt)
            for part in (model, model.layers[3], model.layers[3]):
                with self.assertRaises(KeyboardInterrupt):
                    part(x_of(step))
                if part is model:
                    with torch.no_grad():
                        model.layers[3].up.weight.mul_(0.9)
            handle.remove()
            return backward(model, None, step), torch._C._autograd._top_saved_tensors_default_hooks(False)
        self.compare(Stack, go_on)

    def test_one_thread_at_a_time(self):
        model, _ = self.offloaded(PINNED)
        errors, inside, done = [], threading.Event(), threading.Event()

        def wait(module, given):
            inside.set()
            done.wait(20)
        handle = model.layers[2].register_forward_pre_hook(wait)
        thread = threading.Thread(target=loss_of, args=(model, 1))
        thread.start()
        inside.wait(20)
        for part in (model, model.layers[2]):
            with self.assertRaisesRegex(sluice.InputError, "one thread at a time"):
                part(x_of(1))
        handle.remove()
        done.set()
        thread.join()
        self.assertEqual(errors, [])
        found = []
        thread = threading.Thread(target=lambda: found.append(loss_of(model, 1)))
        thread.start()
        thread.join()
        found[0].backward()
        plain = Stack()
        plain.load_state_dict(model.state_dict())
        loss_of(plain, 1).backward()
        self.assert_same([p.grad for p in plain.parameters()], [p.grad for p in model.parameters()])

    def test_a_dropped_model_is_freed(self):
        for config in (PINNED, STORED):
            model, optimizer = self.offloaded(config)
            backward(model, None, 1)
            optimizer.step()
            refs = weakref.ref(model), weakref.ref(optimizer), weakref.ref(optimizer._sluice_stepper.pager)
            del model, optimizer
            gc.collect()
            self.assertEqual([ref() for ref in refs], [None] * 3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
