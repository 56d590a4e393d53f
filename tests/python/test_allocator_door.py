#!/usr/bin/env python3
"""test_allocator_door.py DIRECTORY: PyTorch's CUDA build allocates through sluice_torch_alloc. Run by tools/test --torch.

There is no GPU: the CUDA runtime counts memory and computes nothing (tests/support/record_snapshots). PyTorch's
autograd, optimizers and MemPool are real, so the calls are those of real steps. Each way is a process of its own:

    native   PyTorch's own allocator
    alone    a CUDAPluggableAllocator over Sluice's allocator
    planned  the same, with steps that are planned
    pool     PyTorch's allocator takes its segments from Sluice's, by a MemPool
    late     tensors that a side stream still reads, by record_stream(), when they are freed

Prints the bytes that each way reserved for the same steps. Nothing is claimed of a GPU. DIRECTORY keeps the counting
libraries.
"""
import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDER = ROOT / "tests" / "support" / "record_snapshots"
WAYS = ("native", "alone", "planned", "pool", "late")
STEPS = 8
MIB = 1 << 20


def make_allocator(planned):
    """Sluice's allocator on the counting device."""
    sys.path.insert(0, str(ROOT / "python"))
    import sluice
    return sluice.Allocator(sluice.Engine("cuda:0", device_bytes=1 << 30, pinned_bytes=MIB), planned=planned)


def train(step_begins):
    """Steps of a small GPT with mixed precision, two micro-batches of different lengths and clipping."""
    import models
    import record
    import torch
    torch.manual_seed(1)
    given = types.SimpleNamespace(model="gpt", optimizer="adamw-foreach", prefetch=False, lengths=[256, 192], seq=256,
                                  precision="amp", accumulate=2, clip=True, evaluate=False, empty_cache=False)
    training = record.Training(given, models.Shape(layers=4, hidden=512, heads=8, vocab=8192, seq=256, batch=4))
    for _ in range(STEPS):
        step_begins()
        training.iteration()


def native_figures(torch):
    stats = torch.cuda.memory_stats()
    return {"allocations": stats["allocation.all.allocated"], "frees": stats["allocation.all.freed"],
            "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
            "peak_live_bytes": stats["requested_bytes.all.peak"], "segments": stats["segment.all.allocated"]}


def read_late(torch):
    """Frees tensors of several sizes while a side stream still reads them, then allocates as much on the first stream.
    Counts the new tensors over old bytes that do not wait for the side stream, and those over old bytes after it."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.counting_hold.argtypes = [ctypes.c_void_p, ctypes.c_int]
    side = torch.cuda.Stream()
    torch.empty(1, device="cuda")
    figures = {"too_early": 0, "afterwards": 0}
    sizes = [512, 100_000, 3 * MIB, 70 * MIB]
    for size in sizes:
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        address = tensor.data_ptr()
        driver.counting_hold(side.cuda_stream, 1)
        with torch.cuda.stream(side):
            tensor.sum()
        tensor.record_stream(side)
        del tensor
        waits = driver.counting_unfinished_waits()
        meanwhile = torch.empty(size, dtype=torch.uint8, device="cuda")
        waits = driver.counting_unfinished_waits() - waits
        figures["too_early"] += meanwhile.data_ptr() == address and waits == 0
        driver.counting_hold(side.cuda_stream, 0)
        del meanwhile
        found = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(4)]
        figures["afterwards"] += address in [one.data_ptr() for one in found]
    return figures | {"sizes": len(sizes)}


def work(way):
    """A way's process: prints its figures."""
    sys.path.insert(0, str(RECORDER))
    import torch
    allocator = None if way == "native" else make_allocator(way == "planned")
    if way == "late":
        torch.cuda.memory.change_current_allocator(allocator.pluggable)
        figures = read_late(torch)
    elif way == "native":
        train(lambda: None)
        figures = native_figures(torch)
    elif way == "pool":
        pool = torch.cuda.MemPool(allocator.pluggable.allocator())
        with torch.cuda.use_mem_pool(pool):
            train(lambda: None)
            figures = allocator.stats() | {"torch": native_figures(torch)}
    else:
        torch.cuda.memory.change_current_allocator(allocator.pluggable)
        train(allocator.step)
        figures = allocator.stats()
    if torch.cuda.get_device_name() != "counting device":
        sys.exit("the CUDA runtime is not the counting one")
    print(json.dumps(figures))
    sys.stdout.flush()
    os._exit(0)  # tensors that PyTorch frees while the process ends are no part of the test


def view_without_nvidia(directory):
    """A folder for PYTHONPATH with this environment's packages but NVIDIA's, which torch would load."""
    import torch
    packages = pathlib.Path(torch.__file__).resolve().parents[1]
    view = directory / "packages"
    shutil.rmtree(view, ignore_errors=True)
    view.mkdir(parents=True)
    for entry in packages.iterdir():
        if not entry.name.startswith("nvidia") and entry.name not in ("torch", "__pycache__"):
            (view / entry.name).symlink_to(entry)
    # Files of torch find their libraries next to the path by which they were opened.
    shutil.copytree(packages / "torch", view / "torch", copy_function=os.symlink)
    return packages, view


def run_ways(directory):
    packages, view = view_without_nvidia(directory)
    headers = next(packages.glob("nvidia/*/include/cuda.h")).parent
    libraries = directory / "counting"
    subprocess.run([sys.executable, str(RECORDER / "build_libraries.py"), "--torch", str(packages / "torch"), "--headers",
                    str(headers), "-o", str(libraries)], check=True)
    environment = dict(os.environ, LD_LIBRARY_PATH=str(libraries), PYTHONPATH=str(view))
    return {way: json.loads(subprocess.run([sys.executable, "-S", __file__, "--way", way], env=environment, check=True,
                                           stdout=subprocess.PIPE, text=True, timeout=600).stdout.splitlines()[-1])
            for way in WAYS}


def has_cuda():
    sys.path.insert(0, str(ROOT / "python"))
    import sluice
    try:
        sluice.Engine("cuda:0", device_bytes=MIB, pinned_bytes=MIB)
    except sluice.Error as error:  # no driver, most often
        return "this build has no CUDA backend" not in str(error)
    return True


class AllocatorDoor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not has_cuda():
            raise unittest.SkipTest("the library was built without nvcc, so it has no CUDA device")
        cls.found = run_ways(pathlib.Path(sys.argv[1]) / "allocator_door")
        print(f"{'way':<8} {'allocations':>11} {'planned':>8} {'peak live':>12} {'peak reserved':>13}")
        for way, figures in cls.found.items():
            if way == "late":
                continue
            print(f"{way:<8} {figures['allocations']:>11} {figures.get('planned_allocations', 0):>8} "
                  f"{figures['peak_live_bytes'] / MIB:>8.1f} MiB {figures['peak_reserved_bytes'] / MIB:>9.1f} MiB")

    def test_every_call_is_served(self):
        native = self.found["native"]
        for way in ("alone", "planned"):
            figures = self.found[way]
            self.assertEqual(figures["allocations"], native["allocations"], way)
            self.assertEqual(figures["frees"], figures["allocations"], way)
            self.assertEqual(figures["live_bytes"], 0, way)
            # Sluice's threads count in batches of 1 MiB.
            self.assertAlmostEqual(figures["peak_live_bytes"], native["peak_live_bytes"], delta=4 * MIB, msg=way)
        self.assertEqual(self.found["alone"]["planned_allocations"], 0)
        self.assertGreater(self.found["planned"]["planned_allocations"], native["allocations"] // 4)

    def test_a_pool_takes_its_segments_from_sluice(self):
        pool = self.found["pool"]
        self.assertEqual(pool["torch"]["allocations"], self.found["native"]["allocations"])
        self.assertGreater(pool["allocations"], 0)
        # Backward passes have a thread of their own, which no MemPool reaches.
        self.assertGreater(pool["live_bytes"], self.found["native"]["peak_reserved_bytes"] // 2)
        self.assertEqual(pool["reserved_bytes"] - pool["live_bytes"], 0)

    def test_a_block_waits_for_the_streams_that_record_stream_names(self):
        late = self.found["late"]
        self.assertEqual(late["too_early"], 0)
        self.assertEqual(late["afterwards"], late["sizes"])

    def test_reserved_bytes_are_as_few(self):
        self.assertLess(self.found["alone"]["peak_reserved_bytes"], 1.05 * self.found["native"]["peak_reserved_bytes"])


if __name__ == "__main__":
    if sys.argv[1] == "--way":
        work(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
