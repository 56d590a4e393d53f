// The handles of the C API, complete. They share the engine, so they may go in any order.
#pragma once

#include <atomic>
#include <memory>

#include "engine/host/framework_allocator.hpp"
#include "engine/host/host_engine.hpp"
#include "engine/host/host_session.hpp"
#include "sluice/sluice.h"

struct sluice_engine {
  std::shared_ptr<sluice::host::HostEngine> inner;
};

struct sluice_allocator {
  std::shared_ptr<sluice::host::FrameworkAllocator> inner;
};

struct sluice_session {
  std::unique_ptr<sluice::host::HostSession> inner;
  std::atomic<bool> busy{false};  // a thread is in a call
};

namespace sluice::capi {

// Removes the allocator from the table of sluice_torch_alloc, if it is there.
void detach_torch(const std::shared_ptr<host::FrameworkAllocator>& allocator) noexcept;

}  // namespace sluice::capi
