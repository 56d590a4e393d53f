// The update of a chunk: checks, the guard, and the choice of the rule.
//
// Elementwise rules call the guard themselves, block by block, while a block is in the cache. Rules
// that need whole tensors visit their data several times; here the guard visits all data once
// before and once after the rule. With `one_thread` an elementwise rule runs on a team of one.
#include "kernels/host/optimizer/update.hpp"

#include <string>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/update_arrays.hpp"

namespace sluice::kernels::host {

namespace {

const ProductRule& required(const ProductRule* muon) {
  if (muon != nullptr) return *muon;
  throw InputError("muon needs matrix products, which this library does not have");
}

}  // namespace

std::uint64_t update_workspace_bytes(const ProductRule* muon, const OptimizerOptions& options,
                                     std::span<const ParameterSegment> segments) {
  check_whole_tensors(options, segments);
  switch (options.rule) {
    case OptimizerRule::kAdafactor:
      return adafactor_workspace_bytes(segments);
    case OptimizerRule::kSm3:
      return sm3_workspace_bytes(segments);
    case OptimizerRule::kMuon:
      return required(muon).workspace_bytes(segments);
    default:
      return 0;
  }
}

namespace {

void run_rule(const Parallel& parallel, const ProductRule* muon, const OptimizerOptions& options,
              const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
              const UpdateScalars& scalars, void* workspace) {
  switch (options.rule) {
    case OptimizerRule::kAdamW:
      return adamw(parallel, options, buffers, segments, scalars);
    case OptimizerRule::kAdam:
      return adam(parallel, options, buffers, segments, scalars);
    case OptimizerRule::kSgd:
      return sgd(parallel, options, buffers, segments, scalars);
    case OptimizerRule::kLion:
      return lion(parallel, options, buffers, segments, scalars);
    case OptimizerRule::kAdafactor:
      return adafactor(parallel, options, buffers, segments, scalars, workspace);
    case OptimizerRule::kSm3:
      return sm3(parallel, options, buffers, segments, scalars, workspace);
    case OptimizerRule::kMuon:
      return required(muon).update(parallel, options, buffers, segments, scalars, workspace);
    case OptimizerRule::kCaller:
      break;
  }
  throw InternalError("no such optimizer rule: " + std::to_string(static_cast<int>(options.rule)));
}

}  // namespace

void update(const Parallel& parallel, const ProductRule* muon, const OptimizerOptions& options,
            const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
            const UpdateScalars& scalars, void* workspace) {
  check_update(options, buffers, segments);
  // Rules that need whole tensors visit them several times, so the guard runs before and after.
  UpdateBuffers guarded = buffers;
  UpdateGuard* const around = needs_whole_tensors(options) ? buffers.host.guard : nullptr;
  if (around != nullptr) {
    guarded.host.guard = nullptr;
    parallel.for_blocks(buffers.elems, kUpdatePieceElems,
                        [&](std::int64_t begin, std::int64_t end) { around->before(begin, end); });
  }
  // Rules that need whole tensors compute too much for one thread.
  if (buffers.host.one_thread && !needs_whole_tensors(options)) {
    run_rule(Parallel(1, nullptr), muon, options, guarded, segments, scalars, workspace);
  } else {
    run_rule(parallel, muon, options, guarded, segments, scalars, workspace);
  }
  if (around != nullptr) {
    parallel.for_blocks(buffers.elems, kUpdatePieceElems,
                        [&](std::int64_t begin, std::int64_t end) { around->after(begin, end); });
  }
}

}  // namespace sluice::kernels::host
