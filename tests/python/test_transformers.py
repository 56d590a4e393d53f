#!/usr/bin/env python3
"""test_transformers.py DIRECTORY: sluice.offload and sluice.hf with models of transformers, against plain PyTorch, to
the bit. Run by tools/test --torch where transformers is installed; SLUICE_WHOLE_MATRIX=1 runs every pair of options."""
import itertools
import os
import pathlib
import shutil
import sys
import unittest
import warnings

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import sluice  # noqa: E402  (the path comes first)
import sluice.hf  # noqa: E402

DIRECTORY = sys.argv[1]
WORDS = 400
PAGE = 2 << 20
SIZES = {"vocab_size": WORDS, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 10,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=192, n_layer=10, n_head=4),
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=64),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=8),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, head_dim=48, sliding_window=8),
    "mixtral": lambda: transformers.MixtralConfig(**{**SIZES, "intermediate_size": 192, "num_local_experts": 4}),
}
OPTIONS = {
    "model": list(CONFIGS),
    "dtype": [torch.float32, torch.bfloat16],
    "optimizer": [("AdamW", {}), ("AdamW", {"fused": True}), ("SGD", {"momentum": 0.9}), ("NAdam", {})],
    "micro": [1, 2],
    "clip": [None, 1.0],
    "checkpointing": [None, False, True],  # None: none; else use_reentrant
    "weights": ["pinned", "storage"],
}


def pairwise(options):
    """Cases in which each pair of values of two options occurs, chosen greedily; always the same ones."""
    names = list(options)
    indexes = {name: range(len(options[name])) for name in names}
    left = {((a, i), (b, j)) for a, b in itertools.combinations(names, 2)
            for i in indexes[a] for j in indexes[b]}
    everything = list(itertools.product(*(indexes[name] for name in names)))
    while left:
        def covers(case):
            return sum(pair in left for pair in itertools.combinations(zip(names, case), 2))
        best = max(everything, key=covers)
        left -= set(itertools.combinations(zip(names, best), 2))
        yield {name: options[name][index] for name, index in zip(names, best)}


def make(model, dtype=torch.float32, optimizer=("AdamW", {}), checkpointing=None):
    torch.manual_seed(1)
    net = transformers.AutoModelForCausalLM.from_config(CONFIGS[model](), dtype=dtype).train()
    if checkpointing is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": checkpointing})
    name, settings = optimizer
    return net, getattr(torch.optim, name)(net.parameters(), lr=1e-3, **settings)


def budgets(net, weights):
    """Windows of at most a third of the weights, but one unit must fit."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in net.parameters())
    return {"device": max(size // 3 // PAGE, 1) * PAGE, "pinned": "512MiB", "storage": DIRECTORY,
            "storage_bytes": "512MiB", "weights": weights, "state": "storage"}


def train(net, optimizer, steps, micro, clip):
    torch.manual_seed(7)
    numbers = []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(micro):
            tokens = torch.randint(0, WORDS, (2, 20), generator=torch.Generator().manual_seed(10 * step + part))
            loss = net(input_ids=tokens, labels=tokens).loss / micro
            loss.backward()
            numbers.append(loss.item())
        if clip is not None:
            numbers.append(torch.nn.utils.clip_grad_norm_(net.parameters(), clip).item())
        optimizer.step()
    return numbers


class Bits(unittest.TestCase):
    def assert_same_weights(self, plain, net):
        expected, found = plain.state_dict(), net.state_dict()
        self.assertEqual(list(expected), list(found))
        for key in expected:
            self.assertTrue(torch.equal(expected[key], found[key]), key)

    def compare(self, steps, micro, clip, weights, **settings):
        plain, plain_optimizer = make(**settings)
        expected = train(plain, plain_optimizer, steps, micro, clip)
        net, optimizer = make(**settings)
        config = budgets(net, weights)
        sluice.offload(net, optimizer, config)
        self.assertEqual(expected, train(net, optimizer, steps, micro, clip))
        self.assert_same_weights(plain, net)
        self.assertLessEqual(sluice.status(net)["device_peak_bytes"], config["device"])
        return plain, net

    def test_twenty_steps_of_each_model(self):
        cases = list(pairwise(OPTIONS))
        if not os.environ.get("SLUICE_WHOLE_MATRIX"):
            seen = set()
            cases = [case for case in cases if not (case["model"] in seen or seen.add(case["model"]))]
        else:
            # Each pair alone is covered by fewer; every third case of the whole matrix comes on top.
            names = list(OPTIONS)
            cases += [dict(zip(names, values)) for values in list(itertools.product(*OPTIONS.values()))[::29]]
        for case in cases:
            with self.subTest(**case):
                self.compare(20, **case)
        print(f"{len(cases)} runs of 20 steps")

    def test_generation_in_between(self):
        for weights in ("pinned", "storage"):
            plain, net = self.compare(2, 1, 1.0, weights, model="qwen2")
            prompt = torch.arange(6)[None]
            texts = []
            for each in (plain, net):
                each.eval()
                texts.append(each.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0))
                each.train()
            self.assertTrue(torch.equal(*texts))

    def test_lora(self):
        try:
            import peft
        except ImportError:
            self.skipTest("peft is not installed")
        results = []
        for weights in (None, "pinned", "storage"):
            torch.manual_seed(1)
            net = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"]()).train()
            net = peft.get_peft_model(net, peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]))
            optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
            if weights is not None:
                sluice.offload(net, optimizer, budgets(net, weights))
            results.append((train(net, optimizer, 4, 1, 1.0), net))
            self.assertEqual(results[0][0], results[-1][0])
            self.assert_same_weights(results[0][1], net)

    def test_save_pretrained(self):
        for weights in ("pinned", "storage"):
            plain, net = self.compare(2, 1, 1.0, weights, model="gpt2")
            files = []
            for number, each in enumerate((plain, net)):
                folder = pathlib.Path(DIRECTORY) / f"pretrained{number}"
                each.save_pretrained(folder)
                files.append((folder / "model.safetensors").read_bytes())
                shutil.rmtree(folder)
            self.assertEqual(files[0], files[1])


class Trainer(unittest.TestCase):
    def run_trainer(self, folder, callbacks=(), resume=None):
        if resume is None:
            shutil.rmtree(folder, ignore_errors=True)
        net, _ = make("gpt2")
        generator = torch.Generator().manual_seed(5)
        rows = [torch.randint(0, WORDS, (20,), generator=generator) for _ in range(32)]
        data = [{"input_ids": row, "labels": row} for row in rows]
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), max_steps=6, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            max_grad_norm=0.5, logging_steps=1, warmup_steps=2, learning_rate=1e-3, save_steps=3, report_to=[],
            use_cpu=True, disable_tqdm=True, seed=3)
        trainer = transformers.Trainer(model=net, args=arguments, train_dataset=data, eval_dataset=data[:6],
                                       callbacks=list(callbacks))
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_model(str(folder / "final"))
        return trainer, net

    def history(self, trainer):
        rows = [tuple(entry[key] for key in ("loss", "grad_norm", "learning_rate"))
                for entry in trainer.state.log_history if "loss" in entry]
        self.assertEqual(len(rows), 6)
        self.assertTrue(all(norm > 0.5 for _, norm, _ in rows), "every step must be clipped")
        return rows

    def test_one_changed_line(self):
        folders = [pathlib.Path(DIRECTORY) / name for name in ("trainer_plain", "trainer_offloaded")]
        plain, plain_net = self.run_trainer(folders[0])
        expected = self.history(plain)
        for weights in ("pinned", "storage"):
            config = budgets(plain_net, weights)
            trainer, net = self.run_trainer(folders[1], [sluice.hf.Callback(config)])
            self.assertEqual(expected, self.history(trainer))
            for name in ("final", "checkpoint-3", "checkpoint-6"):
                files = [(folder / name / "model.safetensors").read_bytes() for folder in folders]
                self.assertEqual(files[0], files[1], name)
            self.assertEqual(plain.evaluate()["eval_loss"], trainer.evaluate()["eval_loss"])
            again, net = self.run_trainer(folders[1], [sluice.hf.Callback(config)], str(folders[1] / "checkpoint-3"))
            self.assertEqual(expected, self.history(again))
            for key, value in plain_net.state_dict().items():
                self.assertTrue(torch.equal(value, net.state_dict()[key]), key)


    def run_with_evaluation(self, folder, config, trains=2, **settings):
        """History, weights and losses of evaluations before, between and after two calls of train()."""
        shutil.rmtree(folder, ignore_errors=True)
        net, _ = make("gpt2")
        generator = torch.Generator().manual_seed(5)
        data = [{"input_ids": row, "labels": row} for row in torch.randint(0, WORDS, (24, 20), generator=generator)]
        arguments = transformers.TrainingArguments(**{**dict(
            output_dir=str(folder), max_steps=4, per_device_train_batch_size=2, learning_rate=1e-3, logging_steps=1,
            save_steps=2, eval_steps=2, eval_strategy="steps", load_best_model_at_end=True,
            metric_for_best_model="eval_loss", report_to=[], use_cpu=True, disable_tqdm=True, seed=3), **settings})
        trainer = transformers.Trainer(model=net, args=arguments, train_dataset=data, eval_dataset=data[:6],
                                       callbacks=[sluice.hf.Callback(config)] if config else [])
        losses = [trainer.evaluate()["eval_loss"]]
        for _ in range(trains):
            trainer.train()
            losses.append(trainer.evaluate()["eval_loss"])
        names = ("loss", "grad_norm", "learning_rate", "eval_loss")
        history = [{key: entry[key] for key in names if key in entry} for entry in trainer.state.log_history]
        return losses, history, {key: value.clone() for key, value in net.state_dict().items()}

    def test_evaluation_in_training_and_a_second_train(self):
        folder = pathlib.Path(DIRECTORY) / "trainer_evaluation"
        for settings in ({}, {"bf16_full_eval": True, "load_best_model_at_end": False, "trains": 1}):
            expected = self.run_with_evaluation(folder, None, **settings)
            for weights in ("pinned", "storage"):
                with self.subTest(weights=weights, **settings):
                    found = self.run_with_evaluation(folder, budgets(make("gpt2")[0], weights), **settings)
                    self.assertEqual(expected[:2], found[:2])
                    for key, value in expected[2].items():
                        self.assertTrue(torch.equal(value, found[2][key]), key)

    def test_trainers_that_cannot_be_offloaded(self):
        folder = pathlib.Path(DIRECTORY) / "trainer_refused"
        config = budgets(make("gpt2")[0], "storage")
        for text, settings in (("torch_compile=True needs weights in pinned memory",
                                {"torch_compile": True, "torch_compile_backend": "eager"}),
                               ("the optimizer transformers.optimization.Adafactor", {"optim": "adafactor"})):
            with self.assertRaisesRegex(sluice.InputError, text):
                self.run_with_evaluation(folder, config, **settings)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
