#!/usr/bin/env python3
"""test_torch.py DIRECTORY: sluice.optim with PyTorch. Run by tools/test --torch."""
import copy
import pathlib
import pickle
import sys
import unittest

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import sluice  # noqa: E402  (the path comes first)
import sluice.optim  # noqa: E402

DIRECTORY = sys.argv[1]
STEPS = 12


def make_net(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(20, 150), torch.nn.GELU(), torch.nn.LayerNorm(150),
                               torch.nn.Linear(150, 7)).to(dtype)


def engine():
    return sluice.Engine(device_bytes=1 << 20, pinned_bytes=64 << 20, storage_bytes=64 << 20, storage=DIRECTORY,
                         threads=2)


def train(net, optimizer, schedule=None, first=0, last=STEPS):
    """Losses of each step; two micro-batches, clipping by torch."""
    losses = []
    for step in range(first, last):
        optimizer.zero_grad()
        for micro in range(2):
            generator = torch.Generator().manual_seed(100 * step + micro)
            x = torch.randn(16, 20, generator=generator).to(net[0].weight.dtype)
            loss = net(x).float().square().mean() / 2
            loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return losses


def groups_of(net):
    return [{"params": [net[0].weight, net[3].weight], "weight_decay": 0.1},
            {"params": [net[0].bias, net[2].weight, net[2].bias, net[3].bias], "weight_decay": 0.0, "lr": 3e-3}]


class AdamW(unittest.TestCase):
    def ours(self, net, state, **options):
        return sluice.optim.AdamW(groups_of(net), lr=1e-2, state=state, engine=engine(), **options)

    def test_no_group_is_added_later(self):
        net = make_net()
        optimizer = self.ours(net, "pinned")
        with self.assertRaisesRegex(sluice.InputError, "make another one"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
        self.assertEqual(len(optimizer.param_groups), 2)
        train(net, optimizer, last=1)

    def test_a_step_that_fails_adds_no_gradient(self):
        nets = make_net(), make_net()
        optimizers = [self.ours(net, "pinned") for net in nets]
        for number, (net, optimizer) in enumerate(zip(nets, optimizers)):
            for parameter in net.parameters():
                parameter.grad = torch.ones_like(parameter)
            if number == 1:
                optimizer.param_groups[1]["lr"] = -1.0
                with self.assertRaisesRegex(sluice.InputError, "lr is -1"):
                    optimizer.step()
                optimizer.param_groups[1]["lr"] = 3e-3
            optimizer.step()
        for a, b in zip(nets[0].parameters(), nets[1].parameters()):
            self.assertTrue(torch.equal(a, b))
        states = [optimizer.state_dict()["state"][0]["exp_avg"] for optimizer in optimizers]
        self.assertTrue(torch.equal(*states))

    def test_copies_are_refused(self):
        optimizer = self.ours(make_net(), "pinned")
        for make in (copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(sluice.InputError, "copy or save optimizer.state_dict"):
                make(optimizer)

    def test_follows_torch(self):
        net, plain = make_net(), make_net()
        optimizer, other = self.ours(net, "pinned"), torch.optim.AdamW(groups_of(plain), lr=1e-2)
        before = [parameter.data_ptr() for parameter in net.parameters()]
        losses = [train(n, o, torch.optim.lr_scheduler.StepLR(o, 3)) for n, o in ((net, optimizer), (plain, other))]
        for a, b in zip(*losses):
            self.assertAlmostEqual(a, b, delta=1e-5 * abs(b))
        for a, b in zip(net.parameters(), plain.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        self.assertEqual(before, [parameter.data_ptr() for parameter in net.parameters()])
        mine, theirs = optimizer.state_dict(), other.state_dict()
        self.assertEqual(list(mine["state"]), list(theirs["state"]))
        for i, entry in theirs["state"].items():
            self.assertEqual(mine["state"][i]["step"], entry["step"])
            for name in ("exp_avg", "exp_avg_sq"):
                torch.testing.assert_close(mine["state"][i][name], entry[name], rtol=1e-4, atol=1e-7)

    def test_bits_do_not_depend_on_the_tier(self):
        for dtype, options in ((torch.float32, {}), (torch.bfloat16, {}), (torch.bfloat16, {"split": True}),
                               (torch.float32, {"moments": "bf16"}), (torch.float32, {"moments": "8bit"}),
                               (torch.bfloat16, {"moments": "8bit", "split": True})):
            found = []
            for state in ("pinned", "nvme"):
                net = make_net(dtype)
                losses = train(net, optimizer := self.ours(net, state, **options))
                self.assertEqual(optimizer.stats()["stored_units"], 6 if state == "nvme" else 0)
                found.append((losses, [parameter.detach().clone() for parameter in net.parameters()]))
            self.assertEqual(found[0][0], found[1][0])
            for a, b in zip(found[0][1], found[1][1]):
                self.assertTrue(torch.equal(a, b))
            self.assertLess(found[0][0][-1], found[0][0][0])

    def test_a_state_dict_goes_on_with_the_same_bits(self):
        for dtype, options in ((torch.float32, {}), (torch.bfloat16, {}), (torch.bfloat16, {"split": True}),
                               (torch.float32, {"moments": "8bit"}), (torch.bfloat16, {"moments": "8bit", "split": True})):
            net, whole = make_net(dtype), make_net(dtype)
            expected = train(whole, self.ours(whole, "pinned", **options))
            optimizer = self.ours(net, "storage", **options)
            losses = train(net, optimizer, last=5)
            copy = make_net(dtype)
            resumed = self.ours(copy, "pinned", **options)
            copy.load_state_dict(net.state_dict())
            resumed.load_state_dict(optimizer.state_dict())
            self.assertEqual(losses + train(copy, resumed, first=5), expected)
            for a, b in zip(copy.parameters(), whole.parameters()):
                self.assertTrue(torch.equal(a, b))

    def test_moments_of_8_bits_are_not_converted(self):
        states = []
        for moments in ("fp32", "8bit"):
            net = make_net()
            optimizer = self.ours(net, "pinned", moments=moments)
            train(net, optimizer, last=2)
            states.append((optimizer, optimizer.state_dict()))
        with self.assertRaisesRegex(sluice.InputError, "this optimizer keeps torch.float32"):
            states[0][0].load_state_dict(states[1][1])
        with self.assertRaisesRegex(sluice.InputError, "keeps torch.uint8"):
            states[1][0].load_state_dict(states[0][1])
        for entry in states[1][1]["state"].values():
            del entry["exp_avg_scale"]
        with self.assertRaisesRegex(sluice.InputError, "no exp_avg_scale"):
            states[1][0].load_state_dict(states[1][1])

    def test_moments_of_8_bits_follow_fp32(self):
        losses = []
        for moments in ("fp32", "8bit"):
            net = make_net()
            losses.append(train(net, self.ours(net, "pinned", moments=moments)))
        self.assertNotEqual(losses[0], losses[1])
        for a, b in zip(*losses):
            self.assertAlmostEqual(a, b, delta=0.1 * abs(a))

    def test_a_missing_gradient_takes_none_of_the_others(self):
        net, same = make_net(), make_net()
        for model, fails in ((net, True), (same, False)):
            optimizer = self.ours(model, "pinned")
            model(torch.ones(2, 20)).square().mean().backward()
            if fails:
                kept, model[3].bias.grad = model[3].bias.grad, None
                with self.assertRaises(sluice.InputError):
                    optimizer.step()
                model[3].bias.grad = kept
            optimizer.step()
        for a, b in zip(net.parameters(), same.parameters()):
            self.assertTrue(torch.equal(a, b))

    def test_states_are_found_by_their_keys(self):
        net, turned = make_net(), make_net()
        optimizer, other = self.ours(net, "pinned"), self.ours(turned, "pinned")
        train(net, optimizer, last=2)
        states = optimizer.state_dict()
        turned.load_state_dict(net.state_dict())
        other.load_state_dict({**states, "state": dict(reversed(states["state"].items()))})
        for i, entry in other.state_dict()["state"].items():
            self.assertTrue(torch.equal(entry["exp_avg"], states["state"][i]["exp_avg"]))

    def test_written_parameters_count(self):
        for split in (False, True):
            net = make_net(torch.bfloat16)
            optimizer = self.ours(net, "pinned", split=split)
            train(net, optimizer, last=1)
            with torch.no_grad():
                net[0].weight.fill_(5.0)
            train(net, optimizer, first=1, last=2)
            self.assertGreater(net[0].weight.min().item(), 4.5)

    def test_parameters_outlive_the_optimizer(self):
        net = make_net()
        optimizer = self.ours(net, "pinned")
        values = [parameter.detach().clone() for parameter in net.parameters()]
        del optimizer
        for a, b in zip(net.parameters(), values):
            self.assertTrue(torch.equal(a, b))

    def test_refusals(self):
        net = make_net()
        with self.assertRaises(sluice.Refused):
            sluice.optim.AdamW(net.parameters(), engine=sluice.Engine(device_bytes=1 << 20, pinned_bytes=1 << 20))
        with self.assertRaises(sluice.InputError):
            sluice.optim.AdamW(make_net(torch.float64).parameters(), engine=engine())
        optimizer = self.ours(net, "pinned")
        with self.assertRaisesRegex(sluice.InputError, "parameter 0 of group 0 has no gradient"):
            optimizer.step()
        train(net, optimizer, last=1)
        net[0].weight.grad[0, 0] = float("inf")
        before = [parameter.detach().clone() for parameter in net.parameters()]
        with self.assertRaises(sluice.NotFinite):
            optimizer.step()
        for a, b in zip(net.parameters(), before):
            self.assertTrue(torch.equal(a, b))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
