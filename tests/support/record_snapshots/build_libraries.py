#!/usr/bin/env python3
"""Builds the libraries that PyTorch's CUDA build loads, as ones that count and compute nothing.

    build_libraries.py --torch SITE-PACKAGES/torch --headers INCLUDE -o DIRECTORY

--torch: an installed CUDA build of torch (2.15.0; 2.6.0 of CUDA 12 before this knew CUDA 13). None of NVIDIA's
packages may be on sys.path or next to it when it runs, for torch would prefer them: tests/python/test_allocator_door.py
makes such a view of an environment that has them. --headers: the include folder of the package
nvidia-cuda-runtime of the same version (only its declarations are used).

For each library that torch names and does not carry (libcudart.so.13, libcublas.so.13, ...) this makes one
in DIRECTORY: counting_cuda.cpp or counting_math.c where they define a function, otherwise a function that
fails with "not supported" (the runtime's: 801) or does nothing (SUCCEED, the libraries above it: 0).
Needs: a C and C++ compiler, readelf, nm. Run PyTorch with LD_LIBRARY_PATH=DIRECTORY.
"""

import argparse
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
RUNTIME = "libcudart.so"
DRIVER = "libcuda.so.1"
NOT_SUPPORTED = 801  # cudaErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED
# Functions of the runtime and the driver that have nothing to do: launches, waits, mappings of addresses.
SUCCEED = set("""
cudaHostRegister cudaHostUnregister cuCtxSetCurrent
cudaDeviceSynchronize cudaProfilerStart cudaProfilerStop cudaStreamDestroy cudaStreamQuery
cudaStreamSynchronize cudaStreamWaitEvent cudaThreadExchangeStreamCaptureMode cudaEventDestroy
cudaEventRecord cudaEventRecordWithFlags cudaEventQuery cudaEventSynchronize cudaLaunchKernel cudaLaunchKernelExC
cudaFuncSetAttribute
""".split())


def lines_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def needed_libraries(objects):
    """Names of NVIDIA's libraries in the dynamic sections of `objects`."""
    needed = set()
    for path in objects:
        for line in lines_of("readelf", "-d", str(path)):
            found = re.search(r"\(NEEDED\).*\[(lib(?:cu|nccl|nv)[^\]]*)\]", line)
            if found:
                needed.add(found.group(1))
    return sorted(needed)


def versions_of(path):
    """{version: library} of the versions of symbols that an object needs."""
    found, library = {}, None
    for line in lines_of("readelf", "-W", "-V", str(path)):
        if match := re.search(r"\bFile: (\S+)", line):
            library = match.group(1)
        elif library and (match := re.search(r"\bName: (\S+) +Flags", line)):
            found[match.group(1)] = library
    return found


def missing_symbols(objects, libraries):
    """{library: {symbol: version}} that `objects` take from `libraries`: by the version that the symbol asks for,
    else by the longest name that it begins with (cusparseLtInit: libcusparseLt.so.0), with version None."""
    stems = {library[3:].split(".so")[0].lower(): library for library in libraries}
    stems["cuda"] = next(name for name in libraries if name.startswith(RUNTIME))
    missing = {library: {} for library in libraries}
    for path in objects:
        versions = versions_of(path)
        for line in lines_of("nm", "-D", "--undefined-only", str(path)):
            symbol, _, version = line.split()[-1].partition("@")
            library = versions.get(version)
            if library in missing:
                missing[library][symbol] = version
            fitting = [stem for stem in stems if symbol.lower().startswith(stem)]
            if fitting and not version:
                missing[stems[max(fitting, key=len)]].setdefault(symbol, None)
    return missing


def defined_symbols(obj):
    return {line.split()[-1] for line in lines_of("nm", "--defined-only", "--extern-only", str(obj))}


def driver_functions(lib):
    """Names that PyTorch looks up in the driver by dlsym: names in the data of libc10_cuda, and those that
    the loader of run-time compiled kernels (libcaffe2_nvrtc) leaves open."""
    names = re.findall(rb"(?<=\0)(cu[A-Z]\w+)(?=\0)", (lib / "libc10_cuda.so").read_bytes())
    wanted = lines_of("nm", "-D", "--undefined-only", str(lib / "libcaffe2_nvrtc.so"))
    return {name.decode() for name in names} | {
        line.split()[-1] for line in wanted if re.search(r" cu[A-Z]\w+$", line)}


def build(library, missing, given, out, options=()):
    """Builds one library from the `given` objects, and from a generated source for symbols they lack."""
    lacking = sorted(set(missing) - set().union(*[defined_symbols(obj) for obj in given], set()))
    status = NOT_SUPPORTED if library.startswith((RUNTIME, DRIVER)) else 0
    source = out / (library + ".c")
    source.write_text("".join(
        f"int {name}(void) {{ return {0 if name in SUCCEED else status}; }}\n" for name in lacking))
    script = out / (library + ".map")
    others = {version for version in missing.values() if version not in (None, library)}
    script.write_text(library + " { global: *; };\n" + "".join(
        f"{version} {{ global: {'; '.join(name for name in lacking if missing[name] == version)}; }};\n"
        for version in sorted(others)))
    subprocess.run(
        ["c++", "-shared", "-fPIC", "-O1", "-w", "-x", "c", str(source), "-x", "none", *map(str, given),
         "-o", str(out / library), "-Wl,-soname," + library, "-Wl,--version-script," + str(script),
         *options],
        check=True)
    source.unlink()
    script.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("--headers", type=pathlib.Path, required=True)
    parser.add_argument("-o", dest="out", type=pathlib.Path, required=True)
    given = parser.parse_args()
    objects = sorted((given.torch / "lib").glob("lib*torch*.so")) + sorted(
        (given.torch / "lib").glob("libc10*.so"))
    libraries = needed_libraries(objects)
    if not any(name.startswith(RUNTIME) for name in libraries):
        sys.exit(f"{given.torch}: needs no CUDA runtime; give the torch folder of a CUDA build")
    given.out.mkdir(parents=True, exist_ok=True)
    name = next(name for name in libraries if name.startswith(RUNTIME))
    runtime = [given.out / "counting_cuda.o", given.out / "counting_driver.o"]
    math = given.out / "counting_math.o"
    for obj in runtime:
        subprocess.run(["c++", "-std=c++20", "-O2", "-Wall", "-fPIC", "-I", str(HERE.parents[2]), "-isystem",
                        str(given.headers), "-c", str(HERE / (obj.stem + ".cpp")), "-o", str(obj)], check=True)
    subprocess.run(["cc", "-O2", "-Wall", "-fPIC", "-c", str(HERE / "counting_math.c"), "-o", str(math)],
                   check=True)
    for library, missing in missing_symbols(objects, libraries).items():
        if library == DRIVER:
            continue
        wanted = runtime if library == name else (
            [math] if set(missing) & defined_symbols(math) else [])
        build(library, missing, wanted, given.out)
    # Symbols of the driver are found in the runtime that it names.
    defined = set().union(*map(defined_symbols, runtime))
    build(DRIVER, dict.fromkeys(driver_functions(given.torch / "lib") - defined), [], given.out,
          ["-Wl,--no-as-needed", "-L" + str(given.out), "-l:" + name])
    for obj in [*runtime, math]:
        obj.unlink()


if __name__ == "__main__":
    main()
