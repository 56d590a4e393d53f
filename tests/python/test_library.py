#!/usr/bin/env python3
"""test_library.py HEADER DIRECTORY: the Python package over the library, without PyTorch. SLUICE_LIBRARY names
the library; SLUICE_PACKAGE is a folder with another package than the tree's."""
import array
import ctypes
import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, os.environ.get("SLUICE_PACKAGE") or str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import sluice  # noqa: E402  (the path comes first)
from sluice import _library  # noqa: E402

HEADER, DIRECTORY = pathlib.Path(sys.argv[1]), sys.argv[2]
STRUCTS = {"sluice_error_info": _library.ErrorInfo, "sluice_engine_options": _library.EngineOptions,
           "sluice_usage": _library.Usage, "sluice_session_options": _library.SessionOptions,
           "sluice_tensor": _library.Tensor, "sluice_group_options": _library.GroupOptions,
           "sluice_param_options": _library.ParamOptions, "sluice_update_info": _library.UpdateInfo,
           "sluice_session_stats": _library.SessionStats}
SIZES = {"uint32_t": 4, "int32_t": 4, "sluice_status": 4, "sluice_unit": 4, "sluice_group": 4, "sluice_param": 4,
         "uint64_t": 8, "double": 8}


def members(text, name):
    """(member, bytes) of a struct of the header, by its text."""
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", text, re.DOTALL).group(1)
    for declaration in body.split(";"):
        words = declaration.split()
        if not words:
            continue
        pointer = "*" in declaration
        kind = words[0] if words[0] != "const" else words[1]
        names = re.sub(r"^.*?(?=\b\w+(?:\[\w+\])?(?:,|$))", "", declaration.strip()) if pointer else " ".join(words[1:])
        for member in names.split(","):
            match = re.match(r"\W*(\w+)(?:\[(\w+)\])?", member)
            count = {None: 1, "SLUICE_CATEGORY_COUNT": 7}[match.group(2)]
            yield match.group(1), (8 if pointer else SIZES[kind]) * count


class Package(unittest.TestCase):
    def test_structs_are_those_of_the_header(self):
        text = re.sub(r"/\*.*?\*/", " ", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
        for name, struct in STRUCTS.items():
            found = [(field, ctypes.sizeof(kind)) for field, kind in struct._fields_]
            self.assertEqual(found, list(members(text, name)), name)

    def test_plans(self):
        config = {"model": {"family": "gpt2", "layers": 2, "hidden": 64, "heads": 1, "vocab": 64},
                  "train": {"seq": 16}, "memory": {"device": "64MiB", "pinned": "256MiB"}}
        made = sluice.plan(config, "rtx4090-64g-1nvme")
        self.assertEqual((made["event"], made["backend"]), ("plan", "cuda"))
        with self.assertRaisesRegex(sluice.InputError, "train.seqq"):
            sluice.plan({"train": {"seqq": 1}})
        config["memory"]["device"] = "1MiB"
        with self.assertRaisesRegex(sluice.Refused, "memory.device"):
            sluice.plan(config, "rtx4090-64g-1nvme")

    def test_version(self):
        header = HEADER.read_text(encoding="utf-8")
        numbers = re.findall(r"#define SLUICE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
        self.assertEqual(sluice.version(), ".".join(numbers))

    def test_errors_are_exceptions(self):
        with self.assertRaisesRegex(sluice.InputError, "is not a directory"):
            sluice.Engine(device_bytes=1 << 20, pinned_bytes=1 << 20, storage="/nonexistent/sluice")
        with self.assertRaises(ValueError):
            sluice.Engine("tpu")
        session = self.session(self.engine(pinned_bytes=2 << 20), elems=1 << 20, state="pinned", seal=False)
        with self.assertRaisesRegex(sluice.Refused, "pinned_bytes larger by"):
            session.seal()

    def engine(self, pinned_bytes=64 << 20):
        return sluice.Engine(device_bytes=1 << 20, pinned_bytes=pinned_bytes, storage_bytes=64 << 20,
                             storage=DIRECTORY, threads=1)

    def session(self, engine, elems, state, seal=True):
        session = sluice.Session(engine, state=state)
        group = session.add_group(rule="sgd", momentum=0.5, lr=0.25)
        unit = session.add_unit("unit")
        self.param = session.add_param("weight", (elems,), unit=unit, group=group)
        if seal:
            session.seal()
        return session

    def test_updates_have_the_same_result_on_each_tier(self):
        results = []
        for state in ("pinned", "storage"):
            engine = self.engine()
            session = self.session(engine, 10000, state)
            gradient = array.array("f", [float(i % 7) for i in range(10000)])
            for _ in range(3):
                session.give_gradient(self.param, gradient.buffer_info()[0])
                norm = session.update(max_norm=100.0)
            moments = array.array("f", bytes(40000))
            session.read(self.param, "moment1", moments.buffer_info()[0], 10000)
            weights = ctypes.string_at(session.weight_address(self.param), 40000)
            results.append((norm, bytes(moments), weights))
            self.assertEqual(engine.usage("pinned")["live"], session.stats()["planned_pinned_bytes"])
            self.assertEqual(session.stats()["stored_units"], int(state == "storage"))
            session.close()
        self.assertEqual(results[0], results[1])

    def test_a_session_keeps_its_engine(self):
        session = self.session(self.engine(), 100, "pinned")
        path = os.path.join(DIRECTORY, "python_session.safetensors")
        session.save(path)
        session.load(path)
        self.assertEqual(session.stats()["updates"], 0)

    def test_commits(self):
        folder = pathlib.Path(DIRECTORY) / "python_commits"
        folder.mkdir(exist_ok=True)
        for file in folder.iterdir():
            file.unlink()
        found = []
        for _ in range(2):
            session = sluice.Session(self.engine(), state="nvme", commit_path=folder)
            group = session.add_group(lr=0.25)
            param = session.add_param("weight", (300,), unit=session.add_unit("unit"), group=group)
            session.seal()
            if found:
                session.load(folder)
                self.assertEqual(session.stats()["updates"], 1)
            gradient = array.array("f", [float(i % 7) for i in range(300)])
            session.give_gradient(param, gradient.buffer_info()[0])
            session.update()
            found.append(ctypes.string_at(session.weight_address(param), 1200))
            if len(found) == 1:
                session.commit()
            session.close()
        self.assertNotEqual(found[0], found[1])
        with self.assertRaisesRegex(sluice.Error, "create it with a commit_path"):
            self.session(self.engine(), 100, "pinned").commit()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
