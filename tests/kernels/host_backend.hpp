// The host's kernels as a backend of the contract suites (tests/contract/kernels_contract.hpp).
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "kernels/kernels.hpp"
#include "tests/kernels/guarded_workspace.hpp"

namespace sluice::kernels::host {

struct HostBackend {
  using Memory = GuardedWorkspace;  // bytes around it that are written show
  static constexpr bool kSlow = false;
  static constexpr double kLseError = 2e-6;
  static std::string missing() { return {}; }
  static std::unique_ptr<Kernels> make() { return make_host_kernels({.threads = 2}); }
  static void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  static double probability_error(DType) { return 0.0; }  // they stay fp32
};

}  // namespace sluice::kernels::host
