"""Runs a command on a pseudo-terminal of a given width, and reads its output as words and rows.

The terminal does not translate newlines, so a carriage return in the output is the program's own:
it redraws the row. stdin is /dev/null: nobody answers.
"""
import errno
import fcntl
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata

ROWS = 24
COLUMNS = 80
PROCESSORS = 2
HANGING_INDENT = 12  # of continued lines; a word that does not fit after it cannot be wrapped
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
CLEARED = re.compile(r"\r\x1b\[2?K")


def few_processors():
    """Leaves the process two processors, drawn at random: plans of the CPU depend on their number."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, random.sample(allowed, min(PROCESSORS, len(allowed))))


def run(text, place, environment, limit_s):
    """(The exit status of the shell line `text`, or None after `limit_s` seconds; its output)"""
    environment = {**environment, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        child = subprocess.Popen(["bash", "-c", text], cwd=place, env=environment,
                                 stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
                                 start_new_session=True, preexec_fn=few_processors)
    finally:
        os.close(theirs)
    try:
        output, ended = read_to_end(ours, time.monotonic() + limit_s)
        if not ended:
            os.killpg(child.pid, signal.SIGKILL)
        status = child.wait()
    finally:
        os.close(ours)
    return status if ended else None, output.decode(errors="replace")


def read_to_end(terminal, deadline):
    """(All output until no process has the terminal open, or until the deadline; whether it ended)"""
    output = bytearray()
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([terminal], [], [], left)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # EIO: the last process has closed it
                raise
            return bytes(output), True
        if not data:
            return bytes(output), True
        output += data
    return bytes(output), False


def drawn(output):
    """Every row as it was drawn, each redraw apart, without escape sequences."""
    return [row for line in ESCAPE.sub("", output).split("\n") for row in line.split("\r")]


def final_lines(output):
    """The lines as they stand in the end: of redrawn rows the last one."""
    lines = []
    for line in output.split("\n"):
        line = ESCAPE.sub("", CLEARED.split(line)[-1])
        rows = [row for row in line.split("\r") if row.strip()]
        lines.append(rows[-1].rstrip() if rows else "")
    return lines


def width(text):
    return sum(0 if unicodedata.combining(character)
               else 2 if unicodedata.east_asian_width(character) in "WF" else 1
               for character in text)


def too_wide(row):
    """Whether the row leaves the terminal and could be wrapped: no word of it is too long by itself."""
    if width(row.expandtabs()) <= COLUMNS:
        return False
    at = 0
    for word in re.findall(r"\s*\S+", row):
        at += width(word)
        if at > COLUMNS:
            return width(word.strip()) <= COLUMNS - HANGING_INDENT
    return False
