"""Plans of training runs, by the library alone."""
import ctypes
import json
import os

from . import _library


def plan(config, hardware=None, world=None):
    """The plan of a run of the program `sluice`, as `sluice plan --json` prints it; no device is touched.

    config: a dict of the configuration's sections, or the path of a TOML file. hardware: the name or path of a
    profile; None is the measured one of this machine, or else a default. world: a number of ranks. Raises Refused,
    whose message has the smallest change that fits.
    """
    request = {"config": config if isinstance(config, dict) else os.fspath(config)}
    if hardware is not None:
        request["hardware"] = os.fspath(hardware)
    if world is not None:
        request["world"] = world
    answer = ctypes.c_char_p()
    _library.call("sluice_plan", json.dumps(request).encode(), ctypes.byref(answer))
    return json.loads(answer.value)
