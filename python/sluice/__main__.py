"""The program `sluice` of a wheel: the entry point, and `python -m sluice`."""
import os
import pathlib
import sys


def main():
    program = pathlib.Path(__file__).with_name("bin") / "sluice"
    try:
        os.execv(program, ["sluice", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"sluice: {program} cannot be run: {error.strerror}; install sluice-engine again")


if __name__ == "__main__":
    main()
