// xxHash's XXH3 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). The one place that includes it.
//
// xxhash.h alone gives what the library was compiled for, on x86 SSE2. Its dispatching twin, where
// the library has it, takes AVX2 or AVX-512 when it finds them: the same bits, four times as fast,
// and the tags of storage are most of what a streamed step costs beside its update.
#pragma once

#ifdef SLUICE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif
