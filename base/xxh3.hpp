// xxHash's XXH3 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). Only this header includes it.
//
// xxhash.h alone uses the instruction set that the library was compiled for; on x86 that is SSE2.
// The library's dispatching header, if it is installed, picks AVX2 or AVX-512 at run time: the same
// bits, four times as fast. The speed matters: tags for storage are most of the CPU time of a
// streamed step along with its update.
#pragma once

#ifdef SLUICE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif
