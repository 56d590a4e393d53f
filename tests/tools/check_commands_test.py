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
        # exit N; write FILE; read FILE; home; train LOSS; print TEXT; size; terminal
        program.write_text("#!/bin/sh\ncase $1 in\n  exit) exit $2 ;;\n  write) echo x > $2 ;;\n"
                           "  read) cat $2 ;;\n  sleep) sleep $2 ;;\n  home) echo x > $HOME/x ;;\n"
                           "  train) echo \"done     20 steps in 8.00 s, loss 5.5809 -> $2\" ;;\n"
                           "  print) printf \"$2\" ;;\n  size) stty size < /dev/stderr ;;\n"
                           "  terminal) test -t 1 -a -t 2 -a ! -t 0 ;;\n"
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

    def test_commands_run_on_a_terminal_of_80_columns_and_nobody_answers(self):
        self.assertEqual(self.check(self.block("terminal", "size") + "```text\n24 80\n```\n")[0], 0)

    def test_a_row_that_leaves_the_terminal_fails_unless_it_cannot_be_wrapped(self):
        word = "x" * 9 + " "
        for text, status in ((word * 8, 0), (word * 9, 1), (word * 9 + "\\r\\033[K\\n", 1),
                             ("path " + "/" * 100, 0), ("\\r\\033[K" + "x " * 40 + "\\n", 0)):
            got, out = self.check(self.block(f'print "{text}"'))
            self.assertEqual((got, "wider than 80" in out), (status, status == 1), out)

    def output(self, page, printed, note="", options=()):
        command = f"print '{printed}'"
        text = f'{self.block(command)}\nText.\n\n{note}\n```text\n{page}\n```\n'
        return self.check(text, options=options)

    def test_output_is_compared_in_words_and_dots_stand_for_any(self):
        for page, status in (("plan  2 MiB,\n      bound by x\nend", 0), ("plan  2 MiB, ...", 0),
                             ("...\nend", 0), ("plan ... by x\n...\nend", 0), ("...", 0),
                             ("plan  3 MiB, ...", 1), ("plan  2 MiB, bound by x", 1),
                             ("bound ...", 1), ("... end bound ...", 1)):
            got, out = self.output(page, "plan  2 MiB, bound\\n      by x\\nend\\n")
            self.assertEqual((got, "the output" in out), (status, status == 1), f"{page}\n{out}")

    def test_measured_output_is_compared_by_its_form(self):
        printed = "step 4/4 (100%%)  loss 3.25  41.0 ms/step\\n"
        page = "step 1/2 (50%)  loss 5.1  1.13 s/step"
        self.assertEqual(self.output(page, printed)[0], 1)
        note = "<!-- output: measured -->"
        self.assertEqual(self.output(page, printed, note)[0], 0)
        self.assertEqual(self.output(page.replace("loss", "lost"), printed, note)[0], 1)
        self.assertEqual(self.output("anything", printed, "<!-- output: none -->")[0], 0)

    def test_a_digest_of_the_page_is_one_digest_of_the_runs(self):
        def check(first, second):
            pages = [f'{self.block("print " + run * 32)}\n<!-- output: measured -->\n```text\n'
                     f'{page * 32}\n```\n' for page, run in (first, second)]
            return self.check("".join(pages))[0]

        self.assertEqual(check("ac", "ac"), 0)
        self.assertEqual(check("aa", "ac"), 1)
        self.assertEqual(check("ac", "bc"), 1)
        self.assertEqual(check("ac", "bd"), 0)

    def test_a_transcript_runs_its_own_commands(self):
        text = ("<!-- exit: 0, 3 -->\n```text\n$ sluice print one\none\n$ sluice exit 3\n```\n")
        self.assertEqual(self.check(text)[0], 0, self.check(text)[1])
        self.assertEqual(self.check(text.replace("0, 3", "0, 2"))[0], 1)
        self.assertEqual(self.check(text.replace("\none", "\ntwo"))[0], 1)

    def test_update_writes_the_output_and_keeps_elisions(self):
        page = "plan  1 MiB, bound ...\n...\nend   old"
        printed = "plan  2 MiB, bound by x\\nnew   a\\nend   1\\n      2\\nlast  3\\n"
        status, out = self.output(page, printed, options=["--update"])
        self.assertEqual(status, 0, out)
        text = (self.place / "page0.md").read_text()
        self.assertIn("```text\nplan  2 MiB, bound ...\n...\nend   1\n      2\nlast  3\n```\n", text)
        self.assertEqual(self.check(text)[0], 0)

    def test_a_page_out_of_format_is_refused(self):
        for page, words in ((self.block("exit 0").replace(PROGRAM, "rm"), "begins with no command"),
                            ("```sh\n" + PROGRAM + " exit 0\n", "no end"),
                            (self.block("exit 0", note="<!-- needs: luck -->"), "needs are"),
                            ("```text\nplan\n```\n", "no command is before"),
                            (self.block("exit 0", note="<!-- output: odd -->"), "measured or none"),
                            (self.block("exit 0", note="<!-- exit: 0, 0 -->"), "2 exit statuses"),
                            ("No command at all.\n", "no ```sh block"),
                            ("```sh\n# only a comment\n```\n", "no ```sh block")):
            status, out = self.check(page)
            self.assertEqual((status, words in out), (1, True), out)


if __name__ == "__main__":
    unittest.main()
