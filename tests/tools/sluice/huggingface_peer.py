#!/usr/bin/env python3
"""Trains small models, loads their huggingface/ directories with transformers, and compares losses.

    huggingface_peer.py SLUICE

Exits 77 (skipped) where torch or transformers cannot be imported; SLUICE_PEER_PYTHON names an
interpreter that has them. The evaluation loss of the run's last step must be that of the loaded
model over the same tokens.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
SEQ = 32
MICRO_BATCH = 4
EVAL_FRACTION = 0.1
# fp32 against torch's fp32: sums in another order. bf16 weights are exact, the arithmetic is not.
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3}

MODELS = {
    "gpt2": "family = \"gpt2\"\nheads = 4",
    "gpt2_untied": "family = \"gpt2\"\nheads = 4\ntie_embeddings = false\nffn = 88",
    "llama": "family = \"llama\"\nheads = 6\nkv_heads = 2\nffn = 104",
    "llama_tied": "family = \"llama\"\nheads = 3\ntie_embeddings = true",
}

CONFIG = """[model]
{model}
layers = 3
hidden = 48

[data]
paths = ["text.txt"]
eval_fraction = {eval_fraction}

[train]
steps = 20
seq = {seq}
micro_batch = {micro_batch}
precision = "{precision}"
eval_every = 20
threads = 2

[optimizer]
lr = 0.003

[memory]
device = "64MiB"
pinned = "64MiB"
storage = "64MiB"

[log]
dir = "{name}"
"""


def interpreter_or_skip():
    chosen = os.environ.pop("SLUICE_PEER_PYTHON", None)
    if chosen:
        os.execv(chosen, [chosen, *sys.argv])
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: {error}; SLUICE_PEER_PYTHON names an interpreter with torch and "
              "transformers")
        sys.exit(SKIPPED)
    return torch, transformers


def text():
    lines = (f"Line {i} of the text is like line {i * 7919 % 1009}, or nearly so.\n"
             for i in range(400))
    return "".join(lines).encode()


def train(sluice, directory, name, precision):
    """The loss of the last evaluation, and the directory for transformers."""
    config = directory / f"{name}.toml"
    config.write_text(CONFIG.format(model=MODELS[name.split("-")[0]], name=name, seq=SEQ,
                                    micro_batch=MICRO_BATCH, eval_fraction=EVAL_FRACTION,
                                    precision=precision))
    done = subprocess.run([sluice, "train", config.name, "--json"], cwd=directory, check=True,
                          stdout=subprocess.PIPE, text=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "eval"]
    exported = list((directory / name).glob("**/huggingface/config.json"))
    assert len(exported) == 1, exported
    return losses[-1], exported[0].parent


def batches(torch, data):
    """The evaluation windows of engine/data/dataset.hpp: inputs, and targets one token later."""
    stream = torch.tensor(list(data))
    part = stream[len(stream) - int(len(stream) * EVAL_FRACTION):]
    windows = (len(part) - 1) // SEQ
    for first in range(0, windows // MICRO_BATCH * MICRO_BATCH, MICRO_BATCH):
        rows = [part[w * SEQ:w * SEQ + SEQ + 1] for w in range(first, first + MICRO_BATCH)]
        block = torch.stack(rows)
        yield block[:, :-1], block[:, 1:]


def peer_loss(torch, transformers, directory, data):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], (kind, report[kind])
    losses = []
    with torch.no_grad():
        for tokens, targets in batches(torch, data):
            logits = model.eval()(tokens).logits
            losses.append(torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).double(), targets.flatten()).item())
    return sum(losses) / len(losses)


def main():
    torch, transformers = interpreter_or_skip()
    transformers.logging.disable_progress_bar()
    sluice = os.path.abspath(sys.argv[1])
    data = text()
    with tempfile.TemporaryDirectory() as place:
        directory = pathlib.Path(place)
        (directory / "text.txt").write_bytes(data)
        for name in [*MODELS, "gpt2-bf16", "llama-bf16"]:
            precision = "bf16" if name.endswith("-bf16") else "fp32"
            ours, exported = train(sluice, directory, name, precision)
            theirs = peer_loss(torch, transformers, exported, data)
            print(f"{name}: evaluation loss {ours:.9f}, in transformers {theirs:.9f}")
            assert abs(ours - theirs) <= TOLERANCE[precision] * theirs, name


if __name__ == "__main__":
    main()
