// The host's kernels as a backend of the contract suites (tests/contract/kernels_contract.hpp).
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "base/error.hpp"
#include "kernels/kernels.hpp"
#include "kernels/optimizer.hpp"
#include "tests/contract/kernels_contract.hpp"
#include "tests/kernels/guarded_workspace.hpp"

namespace sluice::kernels::host {

struct HostBackend {
  using Memory = GuardedWorkspace;  // bytes around it that are written show
  static constexpr bool kSlow = false;
  static constexpr bool kFindsWrongTokens = true;
  using WrongToken = InternalError;
  static constexpr bool kKeepsNanBits = true;
  static constexpr bool kOneSumOrder = true;
  static constexpr bool kRoundsBeforeBias = false;
  static constexpr double kLseError = 2e-6;
  static std::string missing() { return {}; }
  static std::unique_ptr<Kernels> make() { return make_host_kernels({.threads = 2}); }
  static void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  // Every instruction set, by one thread and by three.
  template <class Run>
  static void for_each_variation(const Run& run) {
    const auto one = make_host_kernels({.threads = 1}), three = make_host_kernels({.threads = 3});
    on_every_target([&](const Parallel& parallel, const std::string& name) {
      run(testing::Variation{parallel.threads() == 1 ? *one : *three, 0, name});
    });
  }
  static double probability_error(DType) { return 0.0; }  // they stay fp32
};

// In place. The workspace has guards around it.
inline void run_update(Kernels& kernels, const OptimizerOptions& options,
                       const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
                       const UpdateScalars& scalars) {
  GuardedWorkspace workspace(kernels.update_workspace_bytes(options, segments));
  kernels.update(options, buffers, segments, scalars, workspace.data());
}

}  // namespace sluice::kernels::host
