#!/usr/bin/env python3
"""test_offload_rules.py DIRECTORY: where offloaded models might part from PyTorch in silence: hooks that compute with
weights, copies that are written, state that is read or comes late, budgets of nested recomputation. Each is equal to
plain PyTorch, to the bit, or reported in one sentence. Run by tools/test."""
import copy
import io
import itertools
import os
import pathlib
import pickle
import subprocess
import sys
import unittest
import warnings

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import sluice  # noqa: E402  (the path comes first)

DIRECTORY = sys.argv[1]
WIDTH = 32
PAGE = 2 << 20  # each unit of these models has windows of one page
PINNED = {"device": 3 * PAGE, "pinned": "64MiB", "threads": 1}
STORED = {**PINNED, "storage": DIRECTORY, "storage_bytes": "64MiB", "weights": "storage", "state": "storage"}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(6))
        self.head = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def x_of(step):
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(step))


def make(net=Stack, seed=1):
    torch.manual_seed(seed)
    return net()


def backward(model, step=0):
    model(x_of(step)).square().mean().backward()


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


class Case(unittest.TestCase):
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

    def compare(self, net, body=lambda model, step: backward(model, step), configs=(PINNED, STORED), steps=3):
        found = []
        for config in (None, *configs):
            model = make(net)
            optimizer = adam(model)
            if config is not None:
                sluice.offload(model, optimizer, config)
            results = []
            for step in range(steps):
                optimizer.zero_grad()
                results.append(body(model, step))
                results.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
                optimizer.step()
            found.append((results, {key: value.clone() for key, value in model.state_dict().items()}))
        for other in found[1:]:
            self.assert_same(found[0], other)


class Modules(Case):
    def test_hooks_that_compute_with_an_embedding(self):
        class Discriminator(torch.nn.Module):
            def __init__(self, norm):
                super().__init__()
                self.label = norm(torch.nn.Embedding(10, WIDTH))
                self.stack = Stack()

            def forward(self, x):
                return (self.label(torch.arange(len(x))) * self.stack(x)).sum(1)

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(context, x, weight):
                context.save_for_backward(weight)
                return x * weight.sum()

            @staticmethod
            def backward(context, gradient):
                return gradient * context.saved_tensors[0].sum(), None

        def own_hook(embedding):
            embedding.register_forward_hook(lambda module, given, output: output * module.weight.square().mean())
            return embedding

        def other_hook(embedding):
            embedding.register_forward_hook(lambda module, given, output: Scaled.apply(output, module.weight.detach()[:2]))
            return embedding
        for norm in (torch.nn.utils.spectral_norm, torch.nn.utils.weight_norm, own_hook,
                     torch.nn.utils.parametrizations.weight_norm):
            with self.subTest(norm), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.compare(lambda: Discriminator(norm), steps=2)
        with self.assertRaisesRegex(sluice.InputError, "keeps a tensor over the memory of parameter 'label.weight'"):
            self.compare(lambda: Discriminator(other_hook), steps=2)

    def test_encoders_that_look_at_their_first_layer(self):
        class Encoder(torch.nn.Module):
            def __init__(self, activation):
                super().__init__()
                layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 64, activation=activation, batch_first=True)
                self.encoder = torch.nn.TransformerEncoder(layer, 3)
                self.alone = torch.nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)
                self.attention = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)

            def forward(self, x, mask):
                x = self.encoder(x, src_key_padding_mask=mask)
                x = self.alone(x, src_key_padding_mask=mask)
                return x, self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        x = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1))
        mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        for activation in ("relu", "gelu"):
            found = []
            for config in (None, PINNED, STORED):
                model = make(lambda: Encoder(activation)).eval()
                if config is not None:
                    sluice.offload(model, None, config)
                with torch.no_grad():
                    found.append([model(x, mask), model.encoder(x, src_key_padding_mask=mask)])
                    with self.assertRaises(RuntimeError):
                        model.encoder(x[..., :3], src_key_padding_mask=mask)
                    found[-1].append(model(x, mask))
                self.assertEqual(torch.overrides.has_torch_function((model.encoder.layers[0].linear1.weight,)),
                                 config is STORED)
                found[-1].append(model.train()(x, torch.zeros_like(mask))[0].shape)
            self.assertTrue(bool((found[0][1][1, 3:] == 0).all()), "PyTorch's path of nested tensors")
            self.assert_same(found[0], found[1])
            self.assert_same(found[0], found[2])

    def test_views_with_gaps_and_expanded_ones(self):
        class Token(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.token = torch.nn.Parameter(torch.randn(1, WIDTH))
                self.table = torch.nn.Parameter(torch.randn(WIDTH, 2 * WIDTH))

            def forward(self, rows):
                return self.token.expand(rows, -1), self.table[:, :WIDTH], self.table.t()[:rows, ::2]

        class Net(Stack):
            def __init__(self):
                super().__init__()
                self.tokens = Token()

            def forward(self, x):
                token, table, other = self.tokens(len(x))
                self.strides = token.stride(), table.stride(), other.stride()
                return super().forward(x + token) @ table + torch.cat([other, other], 1)

        def body(model, step):
            backward(model, step)
            return model.strides
        self.compare(Net, body)


class Copies(Case):
    def test_writes_to_copies_of_stored_weights_raise(self):
        model = sluice.offload(make(), None, STORED)[0]
        source = make(seed=2)
        before = copy.deepcopy(model.state_dict())
        state, weight = model.state_dict(), model.head.weight
        writes = [lambda: state["head.weight"].copy_(source.head.weight), lambda: state["head.weight"].mul_(0.5).add_(1),
                  lambda: state["head.weight"][0].zero_(), lambda: state["head.weight"].view(-1).fill_(0),
                  lambda: state["head.weight"].cpu().zero_(), lambda: state["head.weight"].detach().zero_(),
                  lambda: state["head.weight"].data.zero_(), lambda: state["head.weight"].chunk(2)[0].zero_(),
                  lambda: torch.add(weight, 1, out=state["head.weight"]),
                  lambda: state["head.weight"].__setitem__(0, 0.0), lambda: torch.nn.init.zeros_(state["head.weight"]),
                  lambda: torch._foreach_mul_([state["head.weight"], state["head.bias"]], 0.5),
                  lambda: torch.ops.aten.zero_.default(state["head.weight"]),
                  lambda: weight.detach().clamp_(-1e-3, 1e-3), lambda: torch.detach(weight).zero_(),
                  lambda: weight.data.detach().zero_()]
        for number, write in enumerate(writes):
            with torch.no_grad(), self.subTest(number), self.assertRaisesRegex(
                    sluice.InputError, "is a copy of parameter 'head.weight', which rests on storage, so a write"):
                write()
        for array in (weight.detach().numpy(), state["head.weight"].numpy()):
            with self.assertRaisesRegex(ValueError, "read-only"):
                array[0] = 0
        self.assert_same(before, model.state_dict())

    def test_copies_of_stored_weights_are_read_and_saved(self):
        plain, model = make(), sluice.offload(make(), None, STORED)[0]
        state = model.state_dict()
        self.assert_same(plain.state_dict(), state)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        script = ("import io, sys, torch; state = torch.load(io.BytesIO(sys.stdin.buffer.read()), weights_only=True); "
                  "assert 'sluice' not in sys.modules and {type(t) for t in state.values()} == {torch.Tensor}")
        subprocess.run([sys.executable, "-c", script], input=buffer.getvalue(), check=True)
        for twin in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), {k: v.clone() for k, v in state.items()}):
            self.assertEqual({type(value) for value in twin.values()}, {torch.Tensor})
            self.assert_same(plain.state_dict(), twin)
        try:
            import safetensors.torch
            self.assert_same(plain.state_dict(), dict(
                (key, safetensors.torch.load(safetensors.torch.save(dict(state)))[key]) for key in state))
        except ImportError:
            pass
        other = make(seed=2)
        other.load_state_dict(state)
        self.assert_same(plain.state_dict(), other.state_dict())
        model.load_state_dict(state)
        weight, bias = state["head.weight"], plain.head.bias
        self.assertIs(type(weight * 2 + bias), torch.Tensor)
        with torch.no_grad():
            self.assert_same(torch.add(plain.head.weight, 1), torch.add(weight, torch.ones(1)))
            self.assert_same(plain.head.weight * 2, weight + model.head.weight)
            average = [p.clone() for p in other.parameters()]
            torch._foreach_lerp_(average, list(state.values()), 0.5)
        leaf = weight.clone().requires_grad_()
        probe = model.head.weight.detach().requires_grad_()
        for each in (leaf, probe):
            (x_of(1) @ each.t()).square().sum().backward()
        self.assert_same(leaf.grad, probe.grad)


class State(Case):
    def test_stored_state_is_a_dictionary(self):
        found = []
        for config in (None, STORED):
            model = make()
            optimizer = adam(model)
            if config is not None:
                sluice.offload(model, optimizer, config)
            for step in range(2):
                optimizer.zero_grad()
                backward(model, step)
                optimizer.step()
            state = optimizer.state[model.head.weight]
            moments = [{**state}, dict(state), dict(state.items()), state.copy(), copy.deepcopy(state), copy.copy(state),
                       pickle.loads(pickle.dumps(state))]
            moments += [list(state), len(state), "exp_avg" in state, state.get("exp_avg").norm(), state.get("none", 5),
                        list(state.values()), state["step"]]
            for parameter in optimizer.state:  # as programs move state, or reset it
                for key, value in optimizer.state[parameter].items():
                    if value.dim():
                        optimizer.state[parameter][key] = value.to("cpu") * 0.5
            optimizer.state[model.head.bias].update(exp_avg=torch.zeros(WIDTH))
            optimizer.zero_grad()
            backward(model, 2)
            optimizer.step()
            found.append(copy.deepcopy((moments, [p.detach() for p in model.parameters()], optimizer.state_dict()["state"])))
            if config is not None:
                with self.assertRaisesRegex(sluice.InputError, "copy of the state 'exp_avg', which rests on storage"):
                    state["exp_avg"].mul_(0.5)
                with self.assertRaisesRegex(sluice.InputError, "copy of the state 'exp_avg', which rests on storage"):
                    optimizer.state_dict()["state"][0]["exp_avg"].zero_()
                with self.assertRaisesRegex(sluice.InputError, "a tensor of shape"):
                    state["exp_avg"] = torch.zeros(3)
                for change in (state.clear, lambda: state.pop("exp_avg"), lambda: state.__delitem__("exp_avg")):
                    with self.assertRaisesRegex(sluice.InputError, "keeps its keys"):
                        change()
                twin = make(seed=3)
                other = adam(twin)
                other.load_state_dict(optimizer.state_dict())
                backward(twin)
                other.step()
        self.assert_same(*found)

    def test_late_groups_stay_in_the_budgets(self):
        found = []
        for config in (None, PINNED, STORED):
            model = make()
            optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
            model.layers[:3].requires_grad_(False)
            if config is not None:
                sluice.offload(model, optimizer, config)
            for step in range(6):
                optimizer.zero_grad()
                backward(model, step)
                optimizer.step()
                if step == 1:
                    optimizer.add_param_group({"params": list(model.layers.parameters()), "lr": 1e-3})
                if step == 3:
                    model.layers[:3].requires_grad_(True)
            found.append(([p.detach().clone() for p in model.parameters()], optimizer.state_dict()["state"]))
            if config is STORED:
                weight_bytes = sum(p.nbytes for p in model.parameters())
                self.assertGreaterEqual(sluice.status(model)["stored_state_bytes"], 2 * weight_bytes)
            if config is not None:
                sluice.restore(model)
                self.assert_same(found[-1][1], optimizer.state_dict()["state"])
        self.assert_same(found[0], found[1])
        self.assert_same(found[0], found[2])
        model = make()
        optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
        sluice.offload(model, optimizer, {**PINNED, "pinned": 300000})
        optimizer.add_param_group({"params": list(model.layers.parameters())})
        backward(model)
        before = copy.deepcopy(model.state_dict())
        with self.assertRaisesRegex(sluice.Refused, "pinned larger by"):
            optimizer.step()
        self.assert_same(before, model.state_dict())

    def test_several_optimizers(self):
        found = []
        for config in (None, PINNED, STORED):
            model = make()
            matrices = [p for p in model.parameters() if p.dim() == 2]
            optimizers = [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(
                [p for p in model.parameters() if p.dim() < 2], lr=1e-2)]
            if config is not None:
                self.assertIs(sluice.offload(model, optimizers, config)[1], optimizers)
            for step in range(3):
                backward(model, step)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            found.append(([p.detach().clone() for p in model.parameters()], [o.state_dict()["state"] for o in optimizers]))
            if config is STORED:
                self.assertEqual(sluice.status(model)["other_state_bytes"], 0)
                self.assertGreater(sluice.status(model)["stored_state_bytes"], sum(p.nbytes for p in matrices))
        self.assert_same(found[0], found[1])
        self.assert_same(found[0], found[2])

    def test_optimizers_that_were_not_given(self):
        for config, given in itertools.product((PINNED, STORED), (True, False)):
            model = make()
            optimizer = adam(model.head)
            sluice.offload(model, optimizer if given else None, config)
            other = adam(model.layers)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for step in range(2):
                    backward(model, step)
                    other.step()
            self.assertEqual([str(each.message)[:33] for each in caught], ["this AdamW steps weights of an of"] * given)
            state_bytes = sum(t.nbytes for state in other.state.values() for t in state.values())
            self.assertEqual(sluice.status(model)["other_state_bytes"], state_bytes)

    def test_wrapped_optimizers(self):
        class Wrapper(torch.optim.Optimizer):
            def __init__(self, optimizer):
                self.optimizer = optimizer
        plain, model = make(), make()
        optimizers = [adam(plain), adam(model)]
        wrapper = Wrapper(Wrapper(optimizers[1]))
        self.assertIs(sluice.offload(model, wrapper, STORED)[1], wrapper)
        for net, optimizer in zip((plain, model), optimizers):
            backward(net)
            optimizer.step()
        self.assert_same(plain.state_dict(), model.state_dict())
        self.assertGreater(sluice.status(model)["stored_state_bytes"], 0)


class Reversible(torch.autograd.Function):
    """Its backward pass runs the block."""

    @staticmethod
    def forward(context, x, block):
        context.block = block
        context.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(context, gradient):
        x = context.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = context.block(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None


class Recomputed(Stack):
    """Blocks in the segments of `form`."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def run(self, first, last, x):
        for layer in self.layers[first:last]:
            x = layer(x)
        return x

    def forward(self, x):
        x = x.requires_grad_() if not x.requires_grad else x
        if self.form == "reversible":
            for layer in self.layers:
                x = Reversible.apply(x, layer)
        elif self.form == "nested":
            def inner(x, first):
                return checkpoint(self.run, first, first + 2, self.layers[first](x), use_reentrant=True)
            x = checkpoint(lambda x: inner(inner(x, 0), 3), x, use_reentrant=True)
        elif self.form == "equilibrium":
            with torch.no_grad():
                z = self.run(0, 6, x)
            z = self.run(0, 6, z.detach() + x)
            again = z.detach().requires_grad_()
            value = self.run(0, 6, again + x)
            z.register_hook(lambda gradient: gradient + torch.autograd.grad(value, again, gradient, retain_graph=True)[0])
        else:
            for first in range(0, 6, 3):
                x = checkpoint(self.run, first, first + 3, x, use_reentrant=self.form == "reentrant",
                               preserve_rng_state=False)
        return self.head(x)


class Budgets(Case):
    def test_recomputation_needs_no_more_than_offload_accepts(self):
        for form in ("reentrant", "segments", "nested", "reversible", "equilibrium"):
            with self.subTest(form):
                self.compare(lambda: Recomputed(form), configs=[{**PINNED, "device": PAGE}, {**STORED, "device": PAGE}])

    def test_an_exception_in_recomputation(self):
        def body(model, step):
            if step == 1:
                handle = model.layers[1].register_forward_hook(self.fail)
                with self.assertRaises(ZeroDivisionError):
                    try:
                        backward(model, step)
                    finally:
                        handle.remove()
                model.zero_grad()
            backward(model, step)
        for form in ("reentrant", "segments", "reversible"):
            self.compare(lambda: Recomputed(form), body, configs=[{**PINNED, "device": PAGE}, {**STORED, "device": PAGE}])

    @staticmethod
    def fail(module, given, output):
        if torch._C._current_graph_task_id() != -1:
            raise ZeroDivisionError

    def test_modules_that_call_others_outside_them(self):
        class Caller(torch.nn.Module):
            def __init__(self, other):
                super().__init__()
                self.linear, self.other = torch.nn.Linear(WIDTH, WIDTH), [other]

            def forward(self, x):
                return self.linear(self.other[0](x))

        class Net(Stack):
            def __init__(self):
                super().__init__()
                self.layers.append(Caller(self.layers[0]))
        model = make(Net)
        optimizer = adam(model)
        sluice.offload(model, optimizer, {**STORED, "device": PAGE})
        with self.assertRaisesRegex(sluice.OutOfMemory, f"units 'layers.6', 'layers.0' are in use.*set device to {2 * PAGE}"):
            backward(model)
        sluice.restore(model)
        self.compare(Net, configs=[{**PINNED, "device": 2 * PAGE}, {**STORED, "device": 2 * PAGE}])

    def test_windows_round_as_the_pager_does(self):
        class Odd(torch.nn.Module):
            def __init__(self):
                super().__init__()
                # 2 MiB in all, and more with each tensor at a multiple of 256 bytes.
                self.parts = torch.nn.ParameterList(
                    torch.nn.Parameter(torch.zeros(n)) for n in (1, (PAGE - 8) // 4, 1))
                self.inner = torch.nn.Linear(WIDTH, WIDTH)

            def forward(self, x):
                return self.inner(x) + sum(part.sum() for part in self.parts)
        model = make(Odd)
        with self.assertRaisesRegex(sluice.Refused, f"device larger by {PAGE} bytes"):
            sluice.offload(model, None, {**PINNED, "device": 2 * PAGE})
        sluice.offload(model, None, {**PINNED, "device": 3 * PAGE})
        backward(model)


class Sentences(Case):
    def test_refusals_say_the_way_out(self):
        way_out = r"weights alone work with any optimizer: sluice.offload\(model\)"
        model = make()
        used = adam(model)
        sluice.offload(make(), used, PINNED)
        Adafactor = type("Adafactor", (torch.optim.Optimizer,), {"__module__": "transformers.optimization"})
        cases = [(used, PINNED, "this AdamW steps another offloaded model; make an optimizer for each.*" + way_out),
                 (Adafactor(model.parameters(), {}), PINNED, "transformers.optimization.Adafactor is not known.*these classes of "
                  "torch.optim.*" + way_out), (torch.optim.LBFGS(model.parameters()), PINNED, way_out),
                 (adam(model), {"state": "storage"}, "state is 'storage' and config has no directory.*add storage"),
                 (adam(model), {"weights": "nvme", "storage": []}, "weights is 'nvme' and config has no directory"),
                 (adam(model), {"device": "cuda:0"}, "device is 'cuda:0'; use a number of bytes.*computes on the CPU"),
                 ([adam(model)] * 2, PINNED, "in the list twice")]
        for number, (optimizer, config, text) in enumerate(cases):
            with self.subTest(number), self.assertRaisesRegex(sluice.InputError, text):
                sluice.offload(model, optimizer, config)
        with self.assertRaisesRegex(sluice.InputError, "'weight' of a lazy module has no shape yet; call the model once"):
            sluice.offload(torch.nn.LazyLinear(3), None, PINNED)
        quantized = torch.nn.Linear(2, 2)
        quantized.weight = type("Params4bit", (torch.nn.Parameter,), {})(torch.ones(2, 2))
        with self.assertRaisesRegex(sluice.InputError, "'weight' is a Params4bit; offload.. takes torch.nn.Parameter alone"):
            sluice.offload(quantized, None, PINNED)

    def test_weights_alone_work_with_any_optimizer(self):
        found = []
        for config in (None, {**PINNED, "weights": "cpu"}, {**STORED, "weights": "nvme"}):
            model = make()
            if config is not None:
                sluice.offload(model, None, config)
            optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

            def closure():
                optimizer.zero_grad()
                loss = model(x_of(1)).square().mean()
                loss.backward()
                return loss
            found.append(([optimizer.step(closure).item() for _ in range(2)], [p.detach().clone() for p in model.parameters()]))
        self.assert_same(found[0], found[1])
        self.assert_same(found[0], found[2])

    def test_compiled_models_need_pinned_weights(self):
        for compile_it in (lambda model: torch.compile(model, backend="eager"),
                           lambda model: model.compile(backend="eager") or model):
            model = sluice.offload(make(), None, STORED)[0]
            compiled = compile_it(model)
            with self.assertRaisesRegex(Exception, "torch.compile needs weights in pinned memory"):
                backward(compiled)

    def test_the_module_shows_itself(self):
        self.assertTrue({"offload", "restore", "status", "plan", "Session", "__version__"} <= set(dir(sluice)))
        self.assertEqual(sluice.__version__, sluice.version())


class Aliases(Case):
    """Aliases of a parameter's memory, in another type or under another name: a write is followed or refused."""

    def test_views_in_other_types_write_through(self):
        ways = {"view as int32": lambda t: t.view(torch.int32).zero_(), "its part": lambda t: t.view(torch.int32)[1].zero_(),
                "view as uint8": lambda t: t.view(torch.uint8).fill_(1), "flat": lambda t: t.view(-1).view(torch.int32).zero_(),
                "real": lambda t: t.real.mul_(2), "type_as": lambda t: t.type_as(torch.zeros(1)).mul_(2),
                "same type": lambda t: t.view(torch.float32).mul_(2),
                "complex": lambda t: torch.view_as_complex(t.view(-1, 2)).zero_(),
                "xor": lambda t: t.view(torch.int32).bitwise_xor_(torch.tensor(1, dtype=torch.int32))}
        for name, write in ways.items():
            for through_data in (True, False):
                found = []
                for config in (None, PINNED, STORED):
                    model = make()
                    if config is not None:
                        sluice.offload(model, None, config)
                    parameter = next(model.parameters())
                    with torch.no_grad():
                        write(parameter.data if through_data else parameter)
                    found.append([p.detach().clone() for p in model.parameters()])
                with self.subTest(name, through_data=through_data):
                    self.assert_same(found[0], found[1])
                    self.assert_same(found[0], found[2])

    def test_memory_is_not_handed_out_by_dlpack(self):
        model = make()
        optimizer = adam(model)
        sluice.offload(model, optimizer, STORED)
        backward(model)
        optimizer.step()
        parameter = next(model.parameters())
        for copy in (parameter.detach(), parameter.data, next(iter(model.state_dict().values())),
                     optimizer.state[parameter]["exp_avg"]):
            with self.assertRaisesRegex(sluice.InputError, "would be lost"):
                torch.from_dlpack(copy)
            self.assertEqual(torch.from_dlpack(copy.clone()).shape, copy.shape)

    def test_budgets_beyond_64_bits_are_refused(self):
        for value in (2**63, 2**64 + 16 * 2**20, 10**30, "9999999999TiB"):
            for key in ("device", "pinned"):
                with self.assertRaisesRegex(sluice.InputError, f"{key} is .*below 2\\*\\*63"):
                    sluice.offload(make(), None, {**PINNED, key: value})
        with self.assertRaisesRegex(sluice.InputError, "device_bytes is .*64 bits cannot hold"):
            sluice.Engine(device_bytes=2**64 + 1)


class Ranks(Case):
    def test_two_ranks_of_distributed_data_parallel(self):
        """Around an offloaded model, over gloo."""
        store = pathlib.Path(DIRECTORY).resolve() / "rendezvous"
        store.unlink(missing_ok=True)
        ranks = [subprocess.Popen([sys.executable, __file__, DIRECTORY, "--rank", str(rank), store.as_uri()],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"})
                 for rank in range(2)]
        try:
            for rank in ranks:
                said = rank.communicate(timeout=120)[0].decode(errors="replace")
                self.assertEqual((rank.returncode, said[-2000:] if rank.returncode else ""), (0, ""))
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()


def run_rank(rank, rendezvous):
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    found = []
    for config in (None, PINNED, STORED):
        model = make(seed=rank)  # the wrapper gives all ranks the weights of the first
        optimizer = adam(model)
        if config is not None:
            sluice.offload(model, optimizer, config)
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        for step in range(4):
            optimizer.zero_grad()
            wrapped(x_of(2 * step + rank)).square().mean().backward()
            optimizer.step()
        found.append([p.detach().clone() for p in model.parameters()])
    torch.distributed.barrier()
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2:3] == ["--rank"]:
        run_rank(int(sys.argv[3]), sys.argv[4])
    else:
        unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
