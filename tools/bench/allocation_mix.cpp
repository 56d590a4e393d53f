#include "tools/bench/allocation_mix.hpp"

#include <functional>

#include "base/error.hpp"
#include "base/units.hpp"
#include "tools/replay/generated/trace_generator.hpp"

namespace sluice::bench {
namespace {

constexpr std::uint32_t kWarmIteration = 2;  // the first allocates the optimizer's states

// is_part: whether a request of this size belongs to the mix.
AllocationMix mix_from(const record::MemoryTrace& trace, const std::string& name,
                       bool with_resident,
                       const std::function<bool(std::uint64_t bytes)>& is_part) {
  AllocationMix mix;
  mix.name = name;
  mix.trace.source = trace.source;
  mix.trace.format = trace.format;
  constexpr std::uint32_t kNotHeld = UINT32_MAX;
  std::vector<std::uint32_t> ids(trace.allocations.size(), kNotHeld);  // in the mix, while held
  std::vector<bool> from_before(trace.allocations.size(), false);
  std::uint32_t steps = 0;
  for (const record::TraceOperation& operation : trace.operations) {
    if (operation.action == record::TraceAction::kStep) {
      if (++steps == kWarmIteration + 2) break;
      if (steps != kWarmIteration + 1) continue;
      for (std::uint32_t old = 0; old < from_before.size(); ++old) {
        if (!from_before[old] || !with_resident) continue;
        mix.resident.push_back(static_cast<std::uint32_t>(mix.trace.allocations.size()));
        mix.trace.allocations.push_back(trace.allocations[old]);
      }
      continue;
    }
    const bool is_warm = steps == kWarmIteration + 1;
    const std::uint32_t old = operation.allocation;
    if (operation.action == record::TraceAction::kAlloc) {
      if (!is_warm) {
        from_before[old] = true;
      } else if (is_part(trace.allocations[old].bytes)) {
        ids[old] = static_cast<std::uint32_t>(mix.trace.allocations.size());
        mix.operations.push_back({true, ids[old]});
        mix.trace.allocations.push_back(trace.allocations[old]);
      }
    } else if (operation.action == record::TraceAction::kFree) {
      if (!is_warm) from_before[old] = false;
      if (ids[old] == kNotHeld) continue;
      mix.operations.push_back({false, ids[old]});
      ids[old] = kNotHeld;
    }
  }
  for (const std::uint32_t id : ids) {
    if (id != kNotHeld) mix.operations.push_back({false, id});
  }
  SLUICE_CHECK(!mix.operations.empty());
  return mix;
}

}  // namespace

std::vector<AllocationMix> dense_mixes(std::uint32_t layers) {
  replay::GeneratorOptions options;
  options.seed = 1;
  options.iterations = kWarmIteration + 1;
  options.micro_batches = 2;
  options.layers = layers == 0 ? 24 : layers;
  options.ranks = 1;  // one stream: no communication
  options.log_every = 0;
  const record::MemoryTrace trace = replay::generate_trace(options);
  return {mix_from(trace, "small", false,
                   [](std::uint64_t bytes) { return bytes >= 512 && bytes <= kMiB; }),
          mix_from(trace, "large", false,
                   [](std::uint64_t bytes) { return bytes > kMiB && bytes <= kGiB; }),
          mix_from(trace, "step", true, [](std::uint64_t bytes) { return bytes > 0; })};
}

}  // namespace sluice::bench
