#!/usr/bin/env python3
"""tools/check_commands on pages of its own, with a program of sh in the place of sluice."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_commands"
PROGRAM = "build/release/bin/sluice"


class CheckCommands(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.place = pathlib.Path(self.scratch.name)
        self.tree = self.place / "tree"
        self.tree.mkdir()
        (self.tree / "README.md").write_text("The tree's own.\n")
        program = self.place / "build" / "bin" / "sluice"
        program.parent.mkdir(parents=True)
        # exit N; write FILE; read FILE; home; train LOSS
        program.write_text("#!/bin/sh\ncase $1 in\n  exit) exit $2 ;;\n  write) echo x > $2 ;;\n"
                           "  read) cat $2 ;;\n  sleep) sleep $2 ;;\n  home) echo x > $HOME/x ;;\n"
                           "  train) echo \"done     20 steps in 8.00 s, loss 5.5809 -> $2\" ;;\n"
                           "  *) exit 9 ;;\nesac\n")
        program.chmod(0o755)

    def check(self, *pages, options=()):
        paths = []
        for number, text in enumerate(pages):
            paths.append(self.place / f"page{number}.md")
            paths[-1].write_text(text)
        done = subprocess.run([sys.executable, str(TOOL), "--build", str(self.place / "build"),
                               "--tree", str(self.tree), *options, *map(str, paths)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout

    def block(self, *arguments, note=""):
        lines = "\n".join(f"{PROGRAM} {words}" for words in arguments)
        return f"Text.\n\n{note}\n```sh\n# a comment\n{lines}\n```\n"

    def test_runs_each_command_and_counts_them(self):
        status, out = self.check(self.block("exit 0", "exit 0"))
        self.assertEqual((status, "2 commands run, 0 failed" in out), (0, True), out)

    def test_a_failing_command_fails_the_check_and_is_named(self):
        status, out = self.check(self.block("exit 0", "exit 3"))
        self.assertEqual(status, 1, out)
        self.assertIn("page0.md:7", out)
        self.assertIn("ended with 3 instead of 0", out)

    def test_an_expected_status_is_compared(self):
        self.assertEqual(self.check(self.block("exit 2", note="<!-- exit: 2 -->"))[0], 0)
        self.assertEqual(self.check(self.block("exit 0", note="<!-- exit: 2 -->"))[0], 1)
        both = "<!-- exit: 2 -->\n<!-- needs: gpu -->"
        self.assertEqual(self.check(self.block("exit 2", note=both), options=["--needs", "gpu"])[0],
                         0)

    def test_a_loss_is_compared_with_that_of_the_command_before(self):
        def check(before, after):
            return self.check(self.block(before) + self.block(after, note="<!-- loss: 1e-3 -->"))

        self.assertEqual(check("train 4.0000", "train 4.0039")[0], 0)
        self.assertEqual(check("train 4.0000", "train 3.9961")[0], 0)
        for before, after in (("train 4.0000", "train 4.0041"), ("train 4.0000", "train 3.9959")):
            status, out = check(before, after)
            self.assertEqual((status, "not within 0.001" in out), (1, True), out)
        for before, after in (("train 4.0000", "exit 0"), ("exit 0", "train 4.0000")):
            status, out = check(before, after)
            self.assertEqual((status, "must end with a loss" in out), (1, True), out)

    def test_a_note_is_for_the_next_block_alone(self):
        page = self.block("exit 2", note="<!-- exit: 2 -->") + self.block("exit 0")
        self.assertEqual(self.check(page)[0], 0)
        self.assertEqual(self.check("<!-- exit: 2 -->\nText.\n" + self.block("exit 2"))[0], 1)

    def test_what_a_block_needs_decides_whether_it_is_run(self):
        page = self.block("exit 1", note="<!-- needs: torch, time -->") + self.block("exit 0")
        status, out = self.check(page)
        self.assertEqual(status, 0, out)
        self.assertIn("1 for want of time, 1 for want of torch", out)
        self.assertEqual(self.check(page, options=["--needs", "time"])[0], 0)
        self.assertEqual(self.check(page, options=["--needs", "torch,time"])[0], 1)

    def test_a_document_sees_its_own_files_and_no_other_documents(self):
        self.assertEqual(self.check(self.block("write made", "read made"))[0], 0)
        self.assertEqual(self.check(self.block("write made"), self.block("read made"))[0], 1)
        self.assertEqual(self.check(self.block("read README.md", "home"))[0], 0)

    def test_a_command_that_hangs_fails(self):
        status, out = self.check(self.block("sleep 600"), options=["--limit", "0.2"])
        self.assertEqual((status, "took longer" in out), (1, True), out)

    def test_a_page_out_of_format_is_refused(self):
        for page, words in ((self.block("exit 0").replace(PROGRAM, "rm"), "begins with no command"),
                            ("```sh\n" + PROGRAM + " exit 0\n", "no end"),
                            (self.block("exit 0", note="<!-- needs: luck -->"), "needs are"),
                            ("No command at all.\n", "no ```sh block"),
                            ("```sh\n# only a comment\n```\n", "no ```sh block")):
            status, out = self.check(page)
            self.assertEqual((status, words in out), (1, True), out)


if __name__ == "__main__":
    unittest.main()
