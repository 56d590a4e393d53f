// By default glibc maps each large block by itself, and unmaps it when it is freed.
#include "tools/sluice/kept_heap.hpp"

#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace sluice::cli {

void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kGrowthBytes = 16 << 20;
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);  // never
  mallopt(M_TOP_PAD, kGrowthBytes);
#endif
}

}  // namespace sluice::cli
