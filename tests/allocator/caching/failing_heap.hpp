// The heap of this thread fails at its Nth allocation: operator new of the whole test program.
#pragma once

#include <cstdint>

namespace sluice::allocator {

// From now on the allocation number `call` of this thread (0: the next) throws std::bad_alloc,
// once; -1: none does.
void fail_heap_allocation(std::int64_t call);

}  // namespace sluice::allocator
