"""Times torch's products and attention for `sluice bench gemm` and `sluice bench attention`.

Requests and answers are lines of JSON. First this program introduces itself: {"protocol": 1,
"versions": TEXT}. It answers each request {"run": NAME, "repeats": N} by {"ran": NAME, "seconds":
S}, the mean seconds of one of N calls; or by {"error": TEXT}, and ends. Names: gemm/forward,
gemm/input_gradient, gemm/weight_gradient, attention/forward, attention/backward,
attention/forward_backward.
"""
import argparse
import json
import os
import sys
import time


def say(**answer):
    print(json.dumps(answer), flush=True)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=["host", "cuda"], required=True)
    parser.add_argument("--dtype", choices=["BF16", "F16", "F32"], required=True)
    for name in ("threads", "tokens", "hidden", "heads", "time"):
        parser.add_argument("--" + name, type=int, required=True)
    return parser.parse_args()


def gemm_jobs(torch, given, options):
    x = torch.rand(given.tokens, given.hidden, **options) - 0.5
    w = torch.rand(4 * given.hidden, given.hidden, **options) - 0.5
    dy = torch.rand(given.tokens, 4 * given.hidden, **options) - 0.5
    return {"gemm/forward": lambda: x @ w.T,
            "gemm/input_gradient": lambda: dy @ w,
            "gemm/weight_gradient": lambda: dy.T @ x}


def attention_jobs(torch, given, options):
    shape = (given.tokens // given.time, given.heads, given.time, given.hidden // given.heads)
    q, k, v = ((torch.rand(*shape, **options) - 0.5).requires_grad_() for _ in range(3))
    dout = torch.rand(*shape, **options) - 0.5

    def attend():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    kept = attend()

    def backward():
        torch.autograd.grad(kept, (q, k, v), dout, retain_graph=True)

    def both():
        torch.autograd.grad(attend(), (q, k, v), dout)

    return {"attention/forward": attend, "attention/backward": backward,
            "attention/forward_backward": both}


def main():
    given = arguments()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch
    torch.set_num_threads(given.threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # not needed here, and slow
    if given.backend == "cuda" and not torch.cuda.is_available():
        say(error="torch sees no GPU")
        return 1
    device = "cuda" if given.backend == "cuda" else "cpu"
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[given.dtype]
    options = {"device": device, "dtype": dtype}
    jobs = {**gemm_jobs(torch, given, options), **attention_jobs(torch, given, options)}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    say(protocol=1, versions="torch " + torch.__version__)
    for line in sys.stdin:
        request = json.loads(line)
        job = jobs[request["run"]]
        wait()
        begin = time.perf_counter()
        for _ in range(request["repeats"]):
            job()
        wait()
        say(ran=request["run"], seconds=(time.perf_counter() - begin) / request["repeats"])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:  # the bench reports it
        say(error=f"{type(error).__name__}: {error}")
        sys.exit(1)
