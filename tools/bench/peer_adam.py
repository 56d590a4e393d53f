#!/usr/bin/env python3
"""Runs torch's and DeepSpeed's CPU AdamW, one step at a time, for `sluice bench adam`. The bench
starts this program and asks for steps between its own. By hand: run tools/bench/peers once, then

    $(tools/bench/peers --python) tools/bench/peer_adam.py --elems 16777216 --threads 2

Requests and answers are lines of JSON. The first line needs no request: {"protocol": 1,
"versions": words, "missing": sentence or null, "threads": T, "huge_page_bytes": N, "peers":
[{"name", "job", "bytes_per_param"}, ...]}. {"run": NAME} -> {"ran": NAME, "seconds": S}: one timed
step over all elements. {"error": sentence} reports a failure; end of input ends the program.

All peers share the arrays (24 bytes for each element). The arrays lie on huge pages if the system
has them; the threads that work on them touch them first. A peer is timed only after three of its
steps over all elements agree with AdamW in float64 (in windows at both ends and the middle). Each
timed step is compared in the same way, outside the timed part.

On a busy machine a step waits at its barriers for threads that are not scheduled, about 20 ms each.
This hides steps over few elements: measure 16 M elements or more, on an idle machine.
"""
import argparse
import ctypes
import json
import math
import mmap
import os
import sys
import time

PROTOCOL = 1
HUGE_PAGE = 2 << 20
WINDOW = 4096
LR, BETA1, BETA2, EPS, DECAY = 0.02, 0.9, 0.999, 1e-8, 0.01
# Time for the threads of a step to fall asleep (libgomp's spin for some milliseconds), so that they
# do not run during the other program's step.
QUIET_SECONDS = 0.02


def prepare_environment(threads):
    """Sets the threads and the path of DeepSpeed's extension; call before torch is loaded."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["MKL_NUM_THREADS"] = str(threads)
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # torch's own allocations ask for huge pages too
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["TORCH_EXTENSIONS_DIR"] = os.path.join(sys.prefix, "torch_extensions")
    os.environ["PATH"] = f"{sys.prefix}/bin:{os.environ.get('PATH', '')}"


def array(elems, dtype):
    """Zeros on huge pages, of which none exists before it is touched."""
    size = elems * dtype.itemsize
    region = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        region.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # best effort, as in the bench itself; huge_page_bytes reports the result
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    return torch.frombuffer(region, dtype=dtype, count=elems, offset=-start % HUGE_PAGE)


def huge_page_bytes():
    """The huge pages of this process now, in bytes."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("AnonHugePages:"):
                return int(line.split()[1]) << 10
    return 0


def repeat(target, values):
    """`values` again and again; written, and so first touched, by all threads in turn."""
    whole = target.numel() // values.numel() * values.numel()
    target[:whole].view(-1, values.numel()).copy_(values)
    target[whole:].copy_(values[: target.numel() - whole])


class Arrays:
    """Weight, gradient and moments in float32 and in bfloat16."""

    def __init__(self, elems):
        self.elems = elems
        self.f32, self.bf16 = ({kind: array(elems, dtype) for kind in ("p", "g", "m", "v")}
                               for dtype in (torch.float32, torch.bfloat16))
        seed = torch.Generator().manual_seed(1)
        for kind, values in self.values(min(elems, 1 << 18), seed, 0).items():
            for arrays in (self.f32, self.bf16):
                repeat(arrays[kind], values)
        self.scratch = torch.zeros(torch.get_num_threads() << 16)  # enough for each to get a part
        middle = elems // 2 - elems // 2 % 8 + 3  # no multiple of any vector
        self.windows = [slice(0, WINDOW), slice(middle, min(middle + WINDOW, elems)),
                        slice(max(elems - WINDOW, 0), elems)]

    def wake_threads(self):
        """A step in a training run finds its threads awake."""
        self.scratch.add_(1.0)

    @staticmethod
    def values(count, seed, step):
        """A state as AdamW has after `step` steps: nothing near zero but the moments before one."""
        def uniform(low, high):
            return torch.empty(count).uniform_(low, high, generator=seed)
        sign = torch.where(uniform(-1, 1) < 0, -1.0, 1.0)
        gradient = sign * uniform(2e-3, 1e-2)
        fill1, fill2 = (1 - beta ** (step or 1000) for beta in (BETA1, BETA2))
        return {"p": uniform(-1, 1), "g": gradient, "m": gradient * uniform(0.5, 1.5) * fill1,
                "v": gradient.square() * uniform(0.5, 1.5) * fill2}

    def read(self, source):
        return torch.cat([source[window] for window in self.windows]).double()

    def write(self, target, values):
        begin = 0
        for window in self.windows:
            end = begin + window.stop - window.start
            target[window].copy_(values[begin:end])
            begin = end

    def window_elems(self):
        return sum(window.stop - window.start for window in self.windows)


class Peer:
    """One job: AdamW over the arrays, with the casts that belong to it."""

    def __init__(self, name, job, arrays, optimizer, weights, moments, cast_in=False,
                 copy_out=False):
        self.name, self.job, self.arrays = name, job, arrays
        self.weights, self.moments = weights, moments
        self.cast_in, self.copy_out = cast_in, copy_out
        self.checked = False
        width = 4 if weights is arrays.f32 else 2
        # The gradient read; weight and moments read and written; then the casts.
        self.bytes_per_param = 3 * width + 4 * moments["m"].element_size() \
            + 6 * cast_in + 6 * copy_out
        parameter = torch.nn.Parameter(weights["p"])
        parameter.grad = weights["g"]
        self.optimizer = optimizer([parameter])
        # The optimizer would make these at its first step; here they lie on huge pages.
        self.state = self.optimizer.state[parameter]
        self.counts_in_tensor = not hasattr(self.optimizer, "ds_opt_adam")
        self.state.update(exp_avg=moments["m"], exp_avg_sq=moments["v"], step=0)
        self.set_step(0)

    def set_step(self, step):
        if self.counts_in_tensor:
            self.state["step"] = torch.tensor(float(step))
        else:
            self.state["step"] = step

    def step(self):
        if self.cast_in:
            self.weights["g"].copy_(self.arrays.bf16["g"])
        self.optimizer.step()
        if self.copy_out:
            self.arrays.bf16["p"].copy_(self.weights["p"])

    def timed_step(self):
        """Seconds of one step over all elements."""
        time.sleep(QUIET_SECONDS)
        self.arrays.wake_threads()
        begin = time.perf_counter()
        self.step()
        seconds = time.perf_counter() - begin
        time.sleep(QUIET_SECONDS)
        return seconds

    def places(self):
        return {"p": self.weights["p"], "g": self.weights["g"], "m": self.moments["m"],
                "v": self.moments["v"]}

    def checked_steps(self, first, count, run):
        """Runs steps first + 1 .. first + count, compares the windows, and returns run's last."""
        seed = torch.Generator().manual_seed(1000 * first + count)
        arrays, places = self.arrays, self.places()
        values = arrays.values(arrays.window_elems(), seed, first)
        if first == 0:
            values["m"], values["v"] = (torch.zeros_like(values["m"]) for _ in range(2))
        for kind, place in places.items():
            arrays.write(place, values[kind])
        expected = {kind: arrays.read(place) for kind, place in places.items()}
        if self.cast_in:
            arrays.write(arrays.bf16["g"], values["g"])
            expected["g"] = arrays.read(arrays.bf16["g"])
            arrays.write(places["g"], torch.full_like(values["g"], math.nan))
        if self.copy_out:
            arrays.write(arrays.bf16["p"], torch.full_like(values["p"], math.nan))
        self.set_step(first)
        for step in range(first + 1, first + count + 1):
            result = run()
            self.advance(expected, step)
        self.compare(expected, count)
        return result

    @staticmethod
    def advance(state, step):
        """AdamW in float64 (Loshchilov and Hutter 2019, algorithm 2, decay scaled by the rate)."""
        state["m"] = BETA1 * state["m"] + (1 - BETA1) * state["g"]
        state["v"] = BETA2 * state["v"] + (1 - BETA2) * state["g"].square()
        update = (state["m"] / (1 - BETA1**step)) \
            / ((state["v"] / (1 - BETA2**step)).sqrt() + EPS)
        state["p"] = state["p"] * (1 - LR * DECAY) - LR * update

    def compare(self, expected, steps):
        """Raises if a value is further from float64's than rounding in its dtype explains.

        The bound per step is half a unit in the last place of the stored value (2^-9 of a bfloat16,
        2^-25 of a float32), plus twice that of the inputs. In float32 it is at least 1e-4 of a
        step's length: DeepSpeed computes 1 - beta2^step in float32, and the 1 leaves few bits.
        """
        def unit(tensor):
            return 2.0**-9 if tensor.dtype == torch.bfloat16 else 2.0**-22
        moments = unit(self.moments["m"])
        weights = unit(self.weights["p"])
        largest = {kind: value.abs().max().item() for kind, value in expected.items()}
        step_length = LR * 2  # moments of one step's gradients differ by at most 1.5 / sqrt(0.5)
        allowed = {"m": 2 * steps * moments * (largest["m"] + largest["g"]),
                   "v": 2 * steps * moments * (largest["v"] + largest["g"] ** 2),
                   "p": steps * (2 * weights * largest["p"]
                                 + step_length * max(4 * steps * moments, 1e-4))}
        for kind, what in (("p", "weight"), ("m", "first moment"), ("v", "second moment")):
            actual = self.arrays.read(self.places()[kind])
            error = (actual - expected[kind]).abs().max().item()
            if not error <= allowed[kind]:
                raise RuntimeError(f"{self.name} is not AdamW here: its {what} is {error:.3g} from "
                                   f"float64's, and {allowed[kind]:.3g} is what rounding explains")
        if self.copy_out:
            copied = self.arrays.read(self.arrays.bf16["p"])
            rounded = self.arrays.read(self.weights["p"]).bfloat16().double()
            if not torch.equal(copied, rounded):
                raise RuntimeError(f"{self.name} did not copy its weights to bfloat16")

    def seconds(self):
        if not self.checked:
            self.checked_steps(0, 3, self.step)
            self.checked = True
        return self.checked_steps(7, 1, self.timed_step)


SETTINGS = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAY}


def torch_peers(arrays):
    def fused(parameters):
        return torch.optim.AdamW(parameters, **SETTINGS, fused=True)

    def foreach(parameters):
        return torch.optim.AdamW(parameters, **SETTINGS, foreach=True)
    f32, bf16 = arrays.f32, arrays.bf16
    return [
        Peer("torch_fused", "fp32 all", arrays, fused, f32, f32),
        Peer("torch_foreach", "fp32 all", arrays, foreach, f32, f32),
        Peer("torch_fused_chain", "bf16 gradient to fp32, step, bf16 copy of the weights", arrays,
             fused, f32, f32, cast_in=True, copy_out=True),
        Peer("torch_fused_bf16", "bf16 all, no master", arrays, fused, bf16, bf16),
    ]


def deepspeed_peers(arrays):
    """Returns nothing and a sentence if DeepSpeed or its extension is missing."""
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        from deepspeed.ops.op_builder import CPUAdamBuilder
        if not os.path.exists(os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "cpu_adam",
                                           "cpu_adam.so")):
            raise RuntimeError("its CPU Adam is not compiled (tools/bench/peers does that)")
        CPUAdamBuilder().load(verbose=False)
    except Exception as error:  # torch's peers still work
        return [], f"DeepSpeed does not load: {str(error).splitlines()[0]}"

    def adam(parameters):
        return DeepSpeedCPUAdam(parameters, **SETTINGS)

    def adam_bf16(parameters):
        return DeepSpeedCPUAdam(parameters, **SETTINGS, fp32_optimizer_states=False)
    # Below AVX-512 its loop over bf16 is not written in vectors, so the job's name says so.
    vectors = CPUAdamBuilder().simd_width() == "-D__AVX512__"
    how = "" if vectors else " (no vector code below AVX-512)"
    f32, bf16 = arrays.f32, arrays.bf16
    return [
        Peer("deepspeed", "fp32 all", arrays, adam, f32, f32),
        Peer("deepspeed_copy", "fp32 gradient, step, bf16 copy of the weights", arrays, adam, f32,
             f32, copy_out=True),
        Peer("deepspeed_chain", "bf16 gradient to fp32, step, bf16 copy of the weights", arrays,
             adam, f32, f32, cast_in=True, copy_out=True),
        Peer("deepspeed_bf16", "bf16 gradient and weights, fp32 moments, no master" + how, arrays,
             adam, bf16, f32),
        Peer("deepspeed_bf16_moments", "bf16 all, no master" + how, arrays, adam_bf16, bf16, bf16),
    ], None


def versions():
    """The versions in words, a release's without its build suffix."""
    found = f"torch {torch.__version__.split('+')[0]}"
    if "deepspeed" in sys.modules:
        found += f", DeepSpeed {sys.modules['deepspeed'].__version__}"
    return found


def serve(options, answers):
    def answer(**fields):
        answers.write(json.dumps(fields) + "\n")
        answers.flush()
    torch.set_num_threads(options.threads)
    arrays = Arrays(options.elems)
    peers = torch_peers(arrays)
    of_deepspeed, missing = deepspeed_peers(arrays)
    peers = {peer.name: peer for peer in of_deepspeed + peers}
    answer(protocol=PROTOCOL, versions=versions(), missing=missing,
           threads=torch.get_num_threads(), huge_page_bytes=huge_page_bytes(),
           peers=[{"name": peer.name, "job": peer.job, "bytes_per_param": peer.bytes_per_param}
                  for peer in peers.values()])
    for line in sys.stdin:
        try:
            name = json.loads(line)["run"]
            if name not in peers:
                raise KeyError(f"no peer is called {name}")
            answer(ran=name, seconds=peers[name].seconds())
        except Exception as error:  # the bench reports it
            answer(error=f"{error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elems", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    if options.elems < WINDOW or options.threads < 1:
        parser.error(f"--elems must be at least {WINDOW} and --threads at least 1")
    # The answers get their own copy of standard output, because extensions print to it.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    prepare_environment(options.threads)
    global torch
    import torch
    serve(options, answers)


if __name__ == "__main__":
    main()
