#!/usr/bin/env python3
"""Records PyTorch memory snapshots on a machine without a GPU.

    LD_LIBRARY_PATH=LIBRARIES [PYTORCH_CUDA_ALLOC_CONF=...] \\
        record.py --model gpt --optimizer adamw-fused --iterations 6 -o gpt.pickle

LIBRARIES: the folder that build_libraries.py made. The allocator, autograd, the optimizers and the record are
PyTorch's; arithmetic is absent (losses are 0). The work of each stream is done when the next
call is made, so no block waits for another stream. Prints one line of JSON: the command, the version, and
the figures of torch.cuda.memory_stats() at the end (peaks since the record began). Tests hold a replay of the
snapshot against these figures.

tests/data/README.md says how snapshots are packed into the archive that the tests read.
"""

import argparse
import json
import os
import pathlib
import sys

import torch

import models

OPTIMIZERS = {
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=True),
    "adamw-loop": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-4),
}
TRUTH = ["reserved_bytes.all.peak", "reserved_bytes.all.current", "allocated_bytes.all.peak",
         "active_bytes.all.peak", "requested_bytes.all.peak", "segment.all.peak", "num_alloc_retries",
         "num_device_alloc", "num_device_free"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", choices=sorted(models.MODELS), default="gpt")
    add("--layers", type=int, default=4)
    add("--hidden", type=int, default=1024)
    add("--heads", type=int, default=16)
    add("--vocab", type=int, default=50257)
    add("--seq", type=int, default=1024, help="tokens of a sample; of an image, pixels on a side")
    add("--batch", type=int, default=4, help="samples of a micro-batch")
    add("--attention", choices=["sdpa", "eager"], default="sdpa")
    add("--checkpointing", action="store_true", help="recompute each block in the backward pass")
    add("--precision", choices=["fp32", "amp", "bf16"], default="amp")
    add("--optimizer", choices=sorted(OPTIMIZERS), default="adamw-foreach")
    add("--accumulate", type=int, default=1, help="micro-batches of a step")
    add("--lengths", type=int, nargs="*", help="sequence lengths, in turn, one per micro-batch")
    add("--clip", action="store_true", help="clip by the global norm")
    add("--prefetch", action="store_true", help="inputs come on a stream of their own (not for resnet)")
    add("--generate", type=int, metavar="TOKENS", help="no training: greedy decoding with a cache (llama)")
    add("--evaluate", action="store_true", help="a pass without gradients after every second step")
    add("--empty-cache", action="store_true", help="torch.cuda.empty_cache() after each step")
    add("--iterations", type=int, default=6)
    add("--skip", type=int, default=0, help="iterations before the record begins")
    add("--frames", action="store_true", help="keep the Python stack of each event (large)")
    add("--entries", type=int, default=1000000, help="of the record; the oldest are dropped")
    add("-o", dest="out", type=pathlib.Path, required=True, help="given last")
    return parser.parse_args()


def begin_record(given):
    torch.cuda.memory.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(
        max_entries=given.entries, context="alloc" if given.frames else None, stacks="python")


class Training:
    def __init__(self, given, shape):
        self.given = given
        self.model, self.inputs, self.loss_of = models.MODELS[given.model](shape)
        self.optimizer = OPTIMIZERS[given.optimizer]([p for p in self.model.parameters()])
        self.side = torch.cuda.Stream() if given.prefetch else None
        self.next = None
        self.micro_batches = 0
        self.steps = 0

    def next_inputs(self):
        lengths = self.given.lengths or [self.given.seq]
        self.micro_batches += 1
        return self.inputs(lengths[(self.micro_batches - 1) % len(lengths)])

    def prefetched_inputs(self):
        """Inputs that a stream of its own has fetched meanwhile. Begins to fetch the next."""
        current = torch.cuda.current_stream()
        current.wait_stream(self.side)
        now = self.next
        if now is not None:
            now.record_stream(current)
        with torch.cuda.stream(self.side):
            self.next = self.next_inputs()
        return now if now is not None else self.prefetched_inputs()

    def loss(self):
        inputs = self.prefetched_inputs() if self.side else self.next_inputs()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.given.precision == "amp"):
            return self.loss_of(inputs)

    def iteration(self):
        for _ in range(self.given.accumulate):
            (self.loss() / self.given.accumulate).backward()
        if self.given.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        if self.given.evaluate and self.steps % 2 == 0:
            with torch.no_grad():
                self.loss()
        if self.given.empty_cache:
            torch.cuda.empty_cache()


class Generation:
    """Prompts of half the longest sequence, then token by token; a cache that grows by copies."""

    def __init__(self, given, shape):
        self.given, self.shape = given, shape
        self.model = models.on_device(shape, lambda: models.Llama(shape)).eval()

    @torch.no_grad()
    def iteration(self):
        prompt = self.given.seq // 2
        ids = torch.randint(self.shape.vocab, (self.shape.batch, prompt)).cuda()
        caches = [[] for _ in range(self.shape.layers)]
        start = 0
        for _ in range(self.given.generate):
            logits = self.model(ids, caches, start)
            start += ids.shape[1]
            ids = logits[:, -1:].argmax(dim=-1)


def main():
    given = arguments()
    if torch.cuda.get_device_name() != "counting device":
        sys.exit("record.py: LD_LIBRARY_PATH names no counting libraries (build_libraries.py makes them)")
    torch.manual_seed(1)
    shape = models.Shape(given.layers, given.hidden, given.heads, given.vocab, given.seq, given.batch,
                         given.attention, given.checkpointing,
                         torch.bfloat16 if given.precision == "bf16" else torch.float32)
    if given.skip == 0:
        begin_record(given)
    run = (Generation if given.generate else Training)(given, shape)
    for iteration in range(given.iterations):
        if given.skip and iteration == given.skip:
            begin_record(given)
        run.iteration()
    torch.cuda.memory._dump_snapshot(str(given.out))
    stats = torch.cuda.memory_stats()
    print(json.dumps({"file": given.out.name, "torch": torch.__version__,
                      "conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
                      "device_bytes": torch.cuda.get_device_properties(0).total_memory,
                      "command": " ".join(sys.argv[1:-2]), **{key: stats[key] for key in TRUTH}}))


if __name__ == "__main__":
    main()
