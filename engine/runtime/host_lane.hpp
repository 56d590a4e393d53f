// Steps that the optimizer lane and the storage lanes share: these lanes do their work on a host
// thread of their own and not on a stream of the device.
#pragma once

#include "device/device.hpp"
#include "engine/runtime/durable_state.hpp"
#include "engine/runtime/run_state.hpp"

namespace sluice::runtime {

// Blocks until all dependencies of `instruction` are done. Returns whether a storage transfer kept
// it waiting. Throws as RunProgress::await does.
bool await_dependencies(RunProgress& run, const schedule::Instruction& instruction);

// Tells a debugging device which memory this host thread is about to touch; it throws when its own
// work may still use that memory.
void check_host_access(device::Device& device, const Program& program,
                       const schedule::Instruction& instruction);

// The tagged range of a transfer's storage side. durable: null in a run that is not durable; else
// it decides which of two versions the pass uses.
offload::TaggedSpace::RangeId storage_range(const Program& program,
                                            const schedule::Instruction& transfer,
                                            const Place& place, const DurableState* durable);

}  // namespace sluice::runtime
