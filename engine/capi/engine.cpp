// Engines.
#include <cmath>
#include <memory>

#include "engine/capi/call.hpp"
#include "engine/capi/handles.hpp"

namespace sluice::capi {
namespace {

std::string storage_engine_name(std::int32_t number) {
  switch (number) {
    case SLUICE_STORAGE_AUTO:
      return "auto";
    case SLUICE_STORAGE_IO_URING:
      return "io_uring";
    case SLUICE_STORAGE_POSIX:
      return "posix";
    default:
      throw InputError("options.storage_engine is " + std::to_string(number) +
                       "; use a SLUICE_STORAGE_ number");
  }
}

host::EngineOptions engine_options(const sluice_engine_options& from) {
  host::EngineOptions options;
  if (from.device_type < 0 || from.device_type > SLUICE_DEVICE_CUDA) {
    throw InputError("options.device_type is " + std::to_string(from.device_type) +
                     "; use SLUICE_DEVICE_CPU or SLUICE_DEVICE_CUDA");
  }
  options.cuda = from.device_type == SLUICE_DEVICE_CUDA;
  if (from.device_id < 0) throw InputError("options.device_id is negative");
  options.device_id = from.device_id;
  options.device_bytes = from.device_bytes;
  options.pinned_bytes = from.pinned_bytes;
  options.storage_bytes = from.storage_bytes;
  options.storage_engine = storage_engine_name(from.storage_engine);
  if (from.storage_path_count > 0) required(from.storage_paths, "options.storage_paths");
  for (std::uint32_t i = 0; i < from.storage_path_count; ++i) {
    options.storage_paths.push_back(
        required_text(from.storage_paths[i], "a path of options.storage_paths"));
  }
  if (from.threads < 0) throw InputError("options.threads is negative");
  options.threads = from.threads;
  // The longest wait: a clock in nanoseconds must not pass its end.
  constexpr double kMostSeconds = 1e8;
  if (!(from.deadline_s >= 0) || from.deadline_s > kMostSeconds) {
    throw InputError("options.deadline_s is not between 0 and 1e8 seconds");
  }
  if (from.deadline_s > 0) options.deadline_s = from.deadline_s;
  if (options.cuda && from.link_bandwidth_bytes_per_s > 0) {
    throw InputError("options.link_bandwidth_bytes_per_s makes up a link, which a GPU has already");
  }
  options.link_bandwidth_bytes_per_s = static_cast<double>(from.link_bandwidth_bytes_per_s);
  return options;
}

Tier tier_of(std::int32_t number) {
  if (number < 0 || number >= static_cast<std::int32_t>(kTierCount)) {
    throw InputError("tier is " + std::to_string(number) + "; use a SLUICE_TIER_ number");
  }
  return static_cast<Tier>(number);
}

}  // namespace
}  // namespace sluice::capi

using sluice::capi::required;
using sluice::capi::run_call;

sluice_status sluice_engine_create(const sluice_engine_options* options, sluice_engine** out) {
  return run_call("sluice_engine_create", [&] {
    required(out, "out");
    const auto wanted = sluice::capi::engine_options(
        sluice::capi::read_or_default(options, SLUICE_ENGINE_OPTIONS_INIT, "options"));
    sluice::capi::watch_forks();
    auto engine = std::make_unique<sluice_engine>();
    engine->inner = std::make_shared<sluice::host::HostEngine>(wanted);
    sluice::capi::note_engine();
    *out = engine.release();
  });
}

void sluice_engine_destroy(sluice_engine* engine) {
  if (!sluice::capi::is_forked_child()) delete engine;
}

sluice_status sluice_engine_usage(sluice_engine* engine, int32_t tier, sluice_usage* out) {
  return run_call("sluice_engine_usage", [&] {
    sluice::host::HostEngine& inner = *required(engine, "engine").inner;
    const sluice::Tier of = sluice::capi::tier_of(tier);
    const sluice::allocator::LedgerTotals totals = inner.ledger().totals(of);
    const sluice::device::DeviceCounters counters = inner.device().counters();
    sluice_usage usage = {};
    usage.cap_bytes = inner.ledger().cap_bytes(of);
    usage.live_bytes = totals.live_bytes;
    usage.peak_bytes = totals.peak_bytes;
    if (of == sluice::Tier::kDevice) usage.measured_peak_bytes = counters.peak_bytes;
    if (of == sluice::Tier::kPinned) usage.measured_peak_bytes = counters.peak_registered_bytes;
    static_assert(SLUICE_CATEGORY_COUNT == sluice::kCategoryCount);
    std::copy(totals.live_by_category.begin(), totals.live_by_category.end(),
              usage.live_by_category);
    sluice::capi::write_struct(out, usage, "out");
  });
}
