#include "kernels/host/optimizer/update.hpp"

#include <string>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"

namespace sluice::host {
namespace {

void check(const UpdateBuffers& buffers, std::span<const ParameterSegment> segments) {
  std::int64_t end = 0;
  for (const ParameterSegment& segment : segments) {
    SLUICE_CHECK_MSG(
        segment.begin >= end && segment.end >= segment.begin && segment.end <= buffers.elems,
        "an update's segments must ascend inside the chunk");
    end = segment.end;
  }
}

}  // namespace

std::uint64_t update_workspace_bytes(const Gemm&, const OptimizerOptions&,
                                     std::span<const ParameterSegment>) {
  return 0;
}

void update(const Parallel& parallel, const Gemm&, const OptimizerOptions& options,
            const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
            const UpdateScalars& scalars, void*) {
  check(buffers, segments);
  switch (options.rule) {
    case OptimizerRule::kAdamW:
      return adamw(parallel, options, buffers, segments, scalars);
    default:
      throw InternalError("no such rule on the host: " +
                          std::string(optimizer_rule_name(options.rule)));
  }
}

}  // namespace sluice::host
