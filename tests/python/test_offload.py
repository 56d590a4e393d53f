#!/usr/bin/env python3
"""test_offload.py DIRECTORY: sluice.offload against plain PyTorch, to the bit. Run by tools/test --torch."""
import copy
import io
import pathlib
import pickle
import sys
import unittest

import torch
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import sluice  # noqa: E402  (the path comes first)

DIRECTORY = sys.argv[1]
STEPS = 6
WORDS = 300
PINNED = {"device": "6MiB", "pinned": "256MiB"}
STATE = {"device": "6MiB", "pinned": "256MiB", "storage": DIRECTORY, "storage_bytes": "256MiB", "state": "storage"}
STORED = {**STATE, "weights": "storage"}
PLACES = {"pinned": PINNED, "state on storage": STATE, "all on storage": STORED}


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(torch.nn.Module):
    """A tied model of 17 MB in fp32: windows of 6 MiB are about a third."""

    def __init__(self, mode=""):
        super().__init__()
        self.mode = mode
        self.embed = torch.nn.Embedding(WORDS, 240)
        self.layers = torch.nn.ModuleList(Block(240) for _ in range(9))
        self.norm = torch.nn.LayerNorm(240)
        self.head = torch.nn.Linear(240, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.fails = False

    def forward(self, tokens):
        x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            if self.mode == "drop" and self.training and torch.rand(()) < 0.4:
                continue
            if self.fails and i == 4:
                raise ZeroDivisionError("in forward")
            x = checkpoint(layer, x, use_reentrant=self.mode == "reentrant") if "check" in self.mode or \
                self.mode == "reentrant" else layer(x)
            if self.mode == "twice":
                x = layer(x)
        return self.head(self.norm(x))


def make(mode="", dtype=torch.float32, optimizer="AdamW", net=Net, **settings):
    torch.manual_seed(1)
    model = net(mode).to(dtype)
    return model, getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3, **settings)


def loss_of(model, seed):
    tokens = torch.randint(0, WORDS, (4, 13), generator=torch.Generator().manual_seed(seed))
    logits = model(tokens[:, :-1]).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(model, optimizer, steps=STEPS, first=0, micro=1, clip=0.5, schedule=None):
    """Each loss and gradient norm."""
    numbers = []
    for step in range(first, first + steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        for part in range(micro):
            loss = loss_of(model, 100 * step + part) / micro
            loss.backward()
            numbers.append(loss.item())
        if clip:
            numbers.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return numbers


class Offload(unittest.TestCase):
    def assert_same(self, plain, other):
        """Models or state dictionaries, to the bit."""
        a, b = (value.state_dict() if hasattr(value, "state_dict") else value for value in (plain, other))
        if isinstance(a, dict):
            self.assertEqual(list(a), list(b))
            for key in a:
                self.assert_same(a[key], b[key])
        elif isinstance(a, (list, tuple)):
            self.assertEqual(len(a), len(b))
            for x, y in zip(a, b):
                self.assert_same(x, y)
        elif isinstance(a, torch.Tensor):
            self.assertTrue(a.dtype == b.dtype and torch.equal(a, b))
        else:
            self.assertEqual(a, b)

    def compare(self, config, micro=1, clip=0.5, change=lambda model: None, **settings):
        plain, plain_optimizer = make(**settings)
        change(plain)
        expected = train(plain, plain_optimizer, micro=micro, clip=clip)
        model, optimizer = make(**settings)
        change(model)
        model, optimizer = sluice.offload(model, optimizer, config)
        self.assertEqual(expected, train(model, optimizer, micro=micro, clip=clip))
        self.assert_same(plain, model)
        self.assert_same(plain_optimizer, optimizer)
        return plain, plain_optimizer, model, optimizer

    def test_every_place_and_optimizer_has_torch_bits(self):
        cases = [("pinned", {}), ("state on storage", {"mode": "check", "micro": 2}),
                 ("all on storage", {"optimizer": "SGD", "momentum": 0.9, "nesterov": True}),
                 ("all on storage", {"dtype": torch.bfloat16, "mode": "reentrant"}),
                 ("pinned", {"optimizer": "NAdam", "dtype": torch.bfloat16, "micro": 2, "clip": None}),
                 ("state on storage", {"fused": True, "weight_decay": 0.1}),
                 ("all on storage", {"amsgrad": True, "mode": "check", "micro": 2}),
                 ("all on storage", {"optimizer": "Adafactor"}), ("state on storage", {"optimizer": "Adagrad"}),
                 ("pinned", {"optimizer": "RMSprop", "centered": True, "momentum": 0.5})]
        for place, settings in cases:
            with self.subTest(place=place, **settings):
                self.compare(PLACES[place], **settings)

    def test_windows_are_a_third_and_ahead_of_use(self):
        _, _, model, _ = self.compare(PINNED)
        status = sluice.status(model)
        self.assertLessEqual(3 * status["device_peak_bytes"], status["weight_bytes"] + (3 << 20))
        self.assertEqual(status["device_cap_bytes"], 6 << 20)
        self.assertGreater(status["prefetches"], status["demand_fetches"])
        self.assertEqual(status["deviations"], 0)
        self.assertIn("weight_bytes", str(status))

    def test_layers_that_are_dropped_or_called_twice(self):
        for mode in ("drop", "twice"):
            for config in (PINNED, STORED):
                with self.subTest(mode=mode):
                    self.compare(config, mode=mode)

    def test_a_thousand_random_orders(self):
        """Layers skipped, repeated and shuffled, in training and evaluation: no wait, no wrong byte."""
        class Shuffled(torch.nn.Module):
            def __init__(self, _):
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(7))

            def forward(self, x, order):
                for number in order:
                    x = torch.tanh(self.layers[number](x))
                return x

        for config in ({**PINNED, "device": "8MiB"}, {**STORED, "device": "8MiB"}):
            plain, plain_optimizer = make(net=Shuffled)
            model, optimizer = make(net=Shuffled)
            sluice.offload(model, optimizer, config)
            generator = torch.Generator().manual_seed(3)
            for trial in range(1000):
                order = torch.randint(0, 7, (1 + trial % 11,), generator=generator).tolist()
                trains = trial % 4 != 3
                found = []
                for net in (plain, model):
                    with torch.set_grad_enabled(trains):
                        y = net(torch.ones(2, 8), order)
                    if trains:
                        y.square().sum().backward()
                    found.append(y.detach())
                self.assertTrue(torch.equal(*found), order)
                if trial % 50 == 49:
                    for a, b in zip(plain.parameters(), model.parameters()):
                        self.assertTrue(a.grad is None and b.grad is None or torch.equal(a.grad, b.grad))
                    for each in (plain_optimizer, optimizer):
                        each.step()
                        each.zero_grad()
            self.assert_same(plain, model)
            self.assertGreater(sluice.status(model)["demand_fetches"], 0)

    def test_scaled_gradients(self):
        """torch.amp.GradScaler, whose first scales overflow: those steps are skipped."""
        for fused in (False, True):
            results = []
            for config in (None, PINNED, STORED):
                model, optimizer = make(fused=fused)
                if config is not None:
                    sluice.offload(model, optimizer, config)
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
                scales = []
                for step in range(8):
                    optimizer.zero_grad()
                    scaler.scale(loss_of(model, step) * 1000).backward()
                    if step % 2:
                        scaler.unscale_(optimizer)
                        scales.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).isfinite().item())
                    scaler.step(optimizer)
                    scaler.update()
                    scales.append(scaler.get_scale())
                self.assertNotIn(scales[-1], (scales[0], 0.0))
                results.append((scales, model.state_dict(), optimizer.state_dict()["state"]))
            self.assert_same(results[0], results[1])
            self.assert_same(results[0], results[2])

    def test_values_are_clipped_outside_a_pass(self):
        for config in (PINNED, STORED):
            models = [make(), make()]
            sluice.offload(*models[1], config)
            for net, optimizer in models:
                for step in range(4):
                    optimizer.zero_grad()
                    loss_of(net, step).backward()
                    torch.nn.utils.clip_grad_value_(net.parameters(), 1e-3)
                    optimizer.step()
                    with torch.no_grad():
                        for parameter in net.parameters():
                            parameter.clamp_(-0.05, 0.05)
                        net.layers[0].norm.weight.copy_(torch.nn.utils.parameters_to_vector(net.norm.parameters())[:240])
            self.assert_same(models[0][0], models[1][0])
            self.assert_same(models[0][1], models[1][1])

    def test_data_parallel_is_refused(self):
        model, optimizer = make()
        sluice.offload(model, optimizer, PINNED)
        replica = model.layers[0]._replicate_for_data_parallel()  # as DataParallel's replicate() makes them
        with self.assertRaisesRegex(sluice.InputError, "DataParallel"):
            replica(torch.ones(1, 240))

    def test_frozen_parts(self):
        def freeze(model):
            model.layers[:5].requires_grad_(False)
            model.layers[7].up.requires_grad_(False)
        for config in (PINNED, STORED):
            self.compare(config, change=freeze)

    def test_freezing_and_thawing_in_training(self):
        plain, plain_optimizer, model, optimizer = self.compare(STATE)
        for trainable in (False, True):
            for net in (plain, model):
                net.layers[3].requires_grad_(trainable)
                net.zero_grad()
            self.assertEqual(train(plain, plain_optimizer, 2), train(model, optimizer, 2))
            self.assert_same(plain, model)

    def test_evaluation_and_exceptions_in_between(self):
        for config in (PINNED, STORED):
            plain, plain_optimizer, model, optimizer = self.compare(config)
            for net in (plain, model):
                net.eval()
                with torch.no_grad():
                    loss_of(net, 5)
                net.train()
                net.fails = True
                with self.assertRaises(ZeroDivisionError):
                    loss_of(net, 6)
                net.fails = False
                with self.assertRaisesRegex(RuntimeError, "stop here"):
                    x = net.layers[2](net.embed(torch.zeros(1, 2, dtype=torch.int64)))
                    x.register_hook(self.stop)
                    net.layers[3](x).sum().backward()
                net.zero_grad()
            self.assertEqual(train(plain, plain_optimizer, 3), train(model, optimizer, 3))
            self.assert_same(plain, model)

    @staticmethod
    def stop(gradient):
        raise RuntimeError("stop here")

    def test_two_passes_before_one_backward(self):
        results = []
        for config in (None, PINNED, STORED):
            model, optimizer = make()
            if config is not None:
                sluice.offload(model, optimizer, config)
            for step in range(3):
                optimizer.zero_grad()
                total = loss_of(model, step) + loss_of(model, 50 + step)
                total.backward(retain_graph=True)
                total.backward()
                optimizer.step()
            results.append(model.state_dict())
        self.assert_same(results[0], results[1])
        self.assert_same(results[0], results[2])

    def test_parameters_written_between_passes(self):
        def write(net):
            with torch.no_grad():
                net.layers[1].up.weight.mul_(0.5)
                net.head.weight[3] = 0.25
            net.layers[2].up.weight.data.clamp_(-0.01, 0.01)
            net.layers[3].up.weight.data = net.layers[3].up.weight.data * 2
            torch.nn.init.ones_(net.layers[4].down.bias)
        for config in (PINNED, STORED):
            plain, plain_optimizer, model, optimizer = self.compare(config)
            write(plain)
            write(model)
            self.assert_same(plain, model)
            self.assertEqual(train(plain, plain_optimizer, 2), train(model, optimizer, 2))
            self.assert_same(plain, model)

    def test_parameters_read_between_passes(self):
        plain, _, model, _ = self.compare(STORED)
        with torch.no_grad():
            for a, b in zip(plain.parameters(), model.parameters()):
                self.assertTrue(torch.equal(a, b) and torch.equal(a.norm(), b.norm()) and a.shape == b.shape)
        with self.assertRaisesRegex(sluice.InputError, "rests on storage and is used outside its module"):
            model.layers[0].up.weight.sum()
        with self.assertRaisesRegex(sluice.InputError, "with another offloaded model"):
            sluice.offload(torch.nn.Sequential(model.norm), None, STORED)
        self.assertIs(model.head.weight, model.embed.weight)
        self.assertIn("on storage", repr(model.embed.weight))

    def test_states_go_both_ways(self):
        for config in (PINNED, STATE, STORED):
            plain, plain_optimizer, model, optimizer = self.compare(config)
            buffer = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
            buffer.seek(0)
            saved = torch.load(buffer)
            self.assert_same(saved["model"], plain.state_dict())
            other, other_optimizer = make()
            sluice.offload(other, other_optimizer, config)
            train(other, other_optimizer, 1, first=9)
            other.load_state_dict(saved["model"])
            other_optimizer.load_state_dict(saved["optimizer"])
            expected = train(plain, plain_optimizer, 3)
            self.assertEqual(expected, train(other, other_optimizer, 3))
            self.assert_same(plain, other)
            # An optimizer that has made steps can be offloaded, and a restored one is plain.
            sluice.restore(other)
            self.assertIs(type(other_optimizer), torch.optim.AdamW)
            self.assertTrue(all(type(p) is torch.nn.Parameter for p in other.parameters()))
            self.assertEqual(train(plain, plain_optimizer, 2), train(other, other_optimizer, 2))
            sluice.offload(other, other_optimizer, config)
            self.assertEqual(train(plain, plain_optimizer, 2), train(other, other_optimizer, 2))
            self.assert_same(plain_optimizer, other_optimizer)

    def test_copies_are_plain(self):
        for config in (PINNED, STORED):
            plain, plain_optimizer, model, optimizer = self.compare(config)
            twin = copy.deepcopy(model)
            again = pickle.loads(pickle.dumps(model))
            train(model, optimizer, 1)
            for other in (twin, again):
                self.assert_same(plain, other)
                self.assertIs(other.head.weight, other.embed.weight)
                self.assertEqual(train(copy.deepcopy(plain), torch.optim.SGD(plain.parameters(), lr=0), 1),
                                 train(other, torch.optim.SGD(other.parameters(), lr=0), 1))
                self.assertTrue(all(type(p) is torch.nn.Parameter for p in other.parameters()))

    def test_schedules_made_before_and_after(self):
        def schedule_of(optimizer):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        plain, plain_optimizer = make()
        expected = train(plain, plain_optimizer, schedule=schedule_of(plain_optimizer))
        for before in (True, False):
            model, optimizer = make()
            if before:
                schedule = schedule_of(optimizer)
            sluice.offload(model, optimizer, STATE)
            if not before:
                schedule = schedule_of(optimizer)
            self.assertEqual(expected, train(model, optimizer, schedule=schedule))
            self.assert_same(plain, model)

    def test_automatic_budgets_and_a_file_of_them(self):
        path = pathlib.Path(DIRECTORY) / "offload.toml"
        path.write_text(f'[offload]\ndevice = "6MiB"\npinned = "256MiB"\nstorage = "{DIRECTORY}"\nstate = "storage"\n')
        sluice.restore(sluice.offload(make()[0], None, path)[0])
        for config in ("auto", str(path)):
            _, _, model, _ = self.compare(config)
        self.assertEqual(sluice.status(model)["device_cap_bytes"], 6 << 20)
        self.assertGreater(sluice.status(model)["storage_peak_bytes"], 0)

    def test_copies_of_the_optimizer_are_plain(self):
        for config in (PINNED, STORED):
            plain, plain_optimizer, model, optimizer = self.compare(config)
            buffer = io.BytesIO()
            torch.save(optimizer, buffer)
            buffer.seek(0)
            for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)),
                          torch.load(buffer, weights_only=False)):
                self.assertIs(type(other), torch.optim.AdamW)
                self.assert_same(plain_optimizer, other)
                self.assert_same(list(plain.parameters()), [p.detach() for p in other.param_groups[0]["params"]])
                other.step()
            self.assertEqual(train(plain, plain_optimizer, 1), train(model, optimizer, 1))

    def test_closures_step_hooks_and_groups(self):
        results = []
        for config in (None, PINNED, STORED):
            model, _ = make()
            free = torch.nn.Parameter(torch.ones(5))
            optimizer = torch.optim.AdamW(
                [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
                 {"params": [p for p in model.parameters() if p.dim() < 2], "lr": 1e-2}, {"params": [free]}], lr=1e-3)
            if config is not None:
                sluice.offload(model, optimizer, config)
            calls = []
            optimizer.register_step_post_hook(lambda *a, calls=calls: calls.append(1))

            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, len(calls)) + free.square().sum()
                loss.backward()
                return loss
            losses = [optimizer.step(closure).item() for _ in range(4)]
            self.assertEqual(len(calls), 4)
            results.append((losses, model.state_dict(), free.detach().clone(), optimizer.state_dict()["state"]))
        self.assert_same(results[0], results[1])
        self.assert_same(results[0], results[2])

    def test_parts_of_a_model_alone(self):
        plain, _ = make()
        model, _ = sluice.offload(make()[0], None, STORED)
        for net in (plain, model):
            net.zero_grad()
            x = net.layers[1](net.layers[0](torch.ones(2, 240)))
            net.norm(x).square().sum().backward()
        self.assertTrue(torch.equal(plain.layers[0].up.weight.grad, model.layers[0].up.weight.grad))

    def test_workers_of_a_data_loader(self):
        model, optimizer = make()
        sluice.offload(model, optimizer, STORED)
        expected = make()
        loader = torch.utils.data.DataLoader(list(range(3)), num_workers=2, multiprocessing_context="fork")
        for batch in loader:
            for net, optim in ((model, optimizer), expected):
                train(net, optim, 1, first=int(batch))
        self.assert_same(expected[0], model)

    def test_refusals_change_nothing(self):
        model, optimizer = make()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        lbfgs = torch.optim.LBFGS(model.parameters())
        scaled = type("Mine", (torch.optim.AdamW,), {"step": lambda self: None})(model.parameters())
        cases = [(optimizer, {"device": 1 << 20}, sluice.Refused, "device larger by"),
                 (optimizer, {"pinned": "2MiB"}, sluice.Refused, "pinned larger by"),
                 (optimizer, {"storge": "/x"}, sluice.InputError, "unknown key 'storge'"),
                 (optimizer, {"pinned": "two"}, sluice.InputError, "pinned is 'two'"),
                 (optimizer, {"pinned": "0MiB"}, sluice.InputError, "pinned is '0MiB'; use a number of bytes above 0"),
                 (optimizer, {"threads": "two"}, sluice.InputError, "threads is 'two'"),
                 (optimizer, {"storage": 5}, sluice.InputError, "storage is 5"),
                 (optimizer, "nowhere.toml", sluice.InputError, "nowhere.toml"),
                 (optimizer, {"state": "nowhere"}, sluice.InputError, "state is 'nowhere'"),
                 (lbfgs, PINNED, sluice.InputError, "torch.optim.lbfgs.LBFGS is not known"),
                 (scaled, PINNED, sluice.InputError, "Mine is not known")]
        for number, (optim, config, error, text) in enumerate(cases):
            with self.subTest(number), self.assertRaisesRegex(error, text):
                sluice.offload(model, optim, config)
        with self.assertRaisesRegex(sluice.InputError, "DataParallel"):
            sluice.offload(torch.nn.DataParallel(model), optimizer, PINNED)
        hooked, _ = make()
        hooked.norm.bias.register_post_accumulate_grad_hook(print)
        with self.assertRaisesRegex(sluice.InputError, "'norm.bias' has a hook after its gradient"):
            sluice.offload(hooked, None, PINNED)
        with torch.inference_mode(), self.assertRaisesRegex(sluice.InputError, "'weight' was made in inference_mode"):
            sluice.offload(torch.nn.Linear(2, 2), None, PINNED)
        self.assert_same(before, model)
        self.assertEqual(train(model, optimizer, 1), train(*make(), 1))
        with self.assertRaisesRegex(sluice.InputError, "not offloaded"):
            sluice.restore(model)

    def test_uses_that_cannot_work_are_told(self):
        model, optimizer = make()
        sluice.offload(model, optimizer, PINNED)
        with self.assertRaisesRegex(sluice.InputError, "already"):
            sluice.offload(model, optimizer, PINNED)
        with self.assertRaisesRegex(sluice.InputError, "create_graph=True"):
            loss_of(model, 1).backward(create_graph=True)
        with self.assertRaisesRegex(sluice.InputError, "was replaced after offload"):
            torch.func.functional_call(model, {"norm.bias": torch.zeros(240)}, (torch.zeros(1, 2, dtype=torch.int64),))
        model.half()
        with self.assertRaisesRegex(sluice.InputError, "before you convert or move it"):
            loss_of(model, 1)
        model.float()
        handle = model.norm.bias.register_post_accumulate_grad_hook(print)
        with self.assertRaisesRegex(sluice.InputError, "hook after its gradient"):
            loss_of(model, 1)
        handle.remove()
        optimizer.zero_grad()
        train(model, optimizer, 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
