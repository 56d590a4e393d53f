#!/usr/bin/env python3
"""build_scripts_test.py TREE: tools/build_jobs, and the GPU architectures of a configuration, with an nvidia-smi that
this test makes up."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TREE = pathlib.Path(sys.argv.pop(1))
JOBS = str(TREE / "tools/build_jobs")
KILLED = ("g++: fatal error: Killed signal terminated program cc1plus",
          "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
          "clang: error: unable to execute command: Killed",
          "/bin/sh: line 1: 12345 Killed                  c++ -c a.cpp")
FAILED = ("a.cpp:3:1: error: expected unqualified-id", "ninja: build stopped: subcommand failed.",
          "[12/90] Building CXX object tests/KilledRanks.cpp.o")


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout.strip()


class BuildJobs(unittest.TestCase):
    def test_jobs_follow_processors_and_memory(self):
        jobs = int(output(JOBS))
        self.assertGreaterEqual(jobs, 1)
        self.assertLessEqual(jobs, len(os.sched_getaffinity(0)))

    def test_a_killed_build_is_told_from_a_failed_one(self):
        with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
            for text, status, killed in [*((line, "1", True) for line in KILLED), *((line, "1", False) for line in FAILED),
                                         ("", "137", True)]:
                log.seek(0)
                log.truncate()
                log.write(text + "\n")
                log.flush()
                said = output(JOBS, "--why", log.name, status)
                self.assertEqual(said.startswith("memory: build with fewer jobs"), killed, text or status)


class Architectures(unittest.TestCase):
    def found(self, answer, status=0):
        """The architectures of a machine whose nvidia-smi prints `answer`."""
        with tempfile.TemporaryDirectory() as folder:
            fake = pathlib.Path(folder) / "nvidia-smi"
            fake.write_text(f"#!/bin/sh\nprintf '{answer}'\nexit {status}\n")
            fake.chmod(0o755)
            script = pathlib.Path(folder) / "find.cmake"
            script.write_text(f'include("{TREE}/cmake/SluiceArchitectures.cmake")\n'
                              'sluice_architectures_here(found)\nmessage("${found}")\n')
            done = subprocess.run(["cmake", "-P", str(script)], capture_output=True, text=True, check=True,
                                  env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
            return done.stderr.strip()

    def test_the_gpus_of_the_machine_are_built_for(self):
        self.assertEqual(self.found("8.9\\n"), "89")
        self.assertEqual(self.found("9.0\\n9.0\\n12.0\\n"), "90;120")

    def test_gpus_that_cannot_be_used_count_as_none(self):
        self.assertEqual(self.found("7.5\\n"), "")
        self.assertEqual(self.found("7.5\\n8.6\\n"), "86")
        self.assertEqual(self.found("NVIDIA-SMI has failed\\n", 9), "")
        self.assertEqual(self.found("[N/A]\\n"), "")


if __name__ == "__main__":
    unittest.main()
