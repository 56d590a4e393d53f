// Allocators for the tensors of a host framework.
#include <memory>
#include <string>

#include "engine/capi/call.hpp"
#include "engine/capi/handles.hpp"

namespace sluice::capi {
namespace {

// Events of 40 bytes each: some 40 GB.
constexpr std::uint64_t kMostEvents = 1'000'000'000;

// The native handle of a stream of the allocator's device. NULL stands for the default stream.
void* native_stream(host::FrameworkAllocator& allocator, const sluice_stream* stream) {
  if (stream == nullptr) return nullptr;
  const host::EngineOptions& engine = allocator.engine().options();
  const std::int32_t type = engine.cuda ? SLUICE_DEVICE_CUDA : SLUICE_DEVICE_CPU;
  if (stream->device_type != type || stream->device_id != engine.device_id) {
    throw InputError("the stream is of device " + std::to_string(stream->device_type) + ":" +
                     std::to_string(stream->device_id) + " and the allocator's engine has " +
                     std::to_string(type) + ":" + std::to_string(engine.device_id));
  }
  return stream->native;
}

host::FrameworkAllocator::SnapshotFormat format_of(std::int32_t number) {
  switch (number) {
    case SLUICE_FORMAT_TORCH:
      return host::FrameworkAllocator::SnapshotFormat::kTorch;
    case SLUICE_FORMAT_CSV:
      return host::FrameworkAllocator::SnapshotFormat::kCsv;
    default:
      throw InputError("format is " + std::to_string(number) +
                       "; a snapshot is written as SLUICE_FORMAT_TORCH or SLUICE_FORMAT_CSV");
  }
}

}  // namespace
}  // namespace sluice::capi

using sluice::capi::required;
using sluice::capi::run_call;
using sluice::host::FrameworkAllocator;

namespace {

FrameworkAllocator& inner(sluice_allocator* allocator) {
  return *required(allocator, "allocator").inner;
}

}  // namespace

sluice_status sluice_allocator_create(sluice_engine* engine,
                                      const sluice_allocator_options* options,
                                      sluice_allocator** out) {
  return run_call("sluice_allocator_create", [&] {
    required(engine, "engine");
    required(out, "out");
    const sluice_allocator_options wanted =
        sluice::capi::read_or_default(options, SLUICE_ALLOCATOR_OPTIONS_INIT, "options");
    if (wanted.planned < 0 || wanted.planned > 1) {
      throw sluice::InputError("options.planned is neither 0 nor 1");
    }
    if (wanted.recorded_events > sluice::capi::kMostEvents) {
      throw sluice::InputError("options.recorded_events is above 1e9");
    }
    auto allocator = std::make_unique<sluice_allocator>();
    allocator->inner = std::make_shared<FrameworkAllocator>(
        engine->inner, sluice::host::FrameworkAllocatorOptions{
                           wanted.planned == 1, static_cast<std::size_t>(wanted.recorded_events)});
    *out = allocator.release();
  });
}

void sluice_allocator_destroy(sluice_allocator* allocator) {
  if (allocator == nullptr || sluice::capi::is_forked_child()) return;
  sluice::capi::detach_torch(allocator->inner);
  delete allocator;
}

sluice_status sluice_allocator_alloc(sluice_allocator* allocator, uint64_t bytes,
                                     const sluice_stream* stream, uint32_t site, void** out) {
  return run_call("sluice_allocator_alloc", [&] {
    FrameworkAllocator& from = inner(allocator);
    required(out, "out");
    *out = from.allocate(bytes, sluice::capi::native_stream(from, stream), site);
  });
}

sluice_status sluice_allocator_free(sluice_allocator* allocator, void* data) {
  return run_call("sluice_allocator_free", [&] { inner(allocator).free(data); });
}

sluice_status sluice_allocator_record_use(sluice_allocator* allocator, void* data,
                                          const sluice_stream* stream) {
  return run_call("sluice_allocator_record_use", [&] {
    FrameworkAllocator& of = inner(allocator);
    sluice::capi::require_data(data, "data");
    of.record_use(data, sluice::capi::native_stream(of, stream));
  });
}

sluice_status sluice_allocator_step(sluice_allocator* allocator) {
  return run_call("sluice_allocator_step", [&] { inner(allocator).begin_step(); });
}

sluice_status sluice_allocator_pin_stream(sluice_allocator* allocator,
                                          const sluice_stream* stream) {
  return run_call("sluice_allocator_pin_stream", [&] {
    FrameworkAllocator& of = inner(allocator);
    if (!of.pin_stream(sluice::capi::native_stream(of, stream))) {
      throw sluice::capi::CallError(SLUICE_E_STATE,
                                    "the stream is in use already; pin it before its first call");
    }
  });
}

sluice_status sluice_allocator_site(sluice_allocator* allocator, const char* name, uint32_t* out) {
  return run_call("sluice_allocator_site", [&] {
    FrameworkAllocator& of = inner(allocator);
    required(out, "out");
    *out = of.intern_site(sluice::capi::required_text(name, "name"));
  });
}

sluice_status sluice_allocator_on_pressure(sluice_allocator* allocator,
                                           sluice_pressure_callback callback, void* user) {
  return run_call("sluice_allocator_on_pressure", [&] {
    FrameworkAllocator& of = inner(allocator);
    if (callback == nullptr) return of.set_pressure_callback({});
    of.set_pressure_callback(
        [callback, user](std::uint64_t wanted_bytes) { return callback(user, wanted_bytes) != 0; });
  });
}

sluice_status sluice_allocator_trim(sluice_allocator* allocator) {
  return run_call("sluice_allocator_trim", [&] { inner(allocator).release_cached(); });
}

sluice_status sluice_allocator_get_stats(sluice_allocator* allocator, sluice_allocator_stats* out) {
  return run_call("sluice_allocator_get_stats", [&] {
    const FrameworkAllocator::Statistics statistics = inner(allocator).statistics();
    const sluice::allocator::CachingAllocatorStatistics& found = statistics.blocks;
    sluice_allocator_stats stats = {};
    stats.live_bytes = found.live_bytes;
    stats.peak_live_bytes = found.peak_live_bytes;
    stats.reserved_bytes = found.reserved_bytes;
    stats.peak_reserved_bytes = found.peak_reserved_bytes;
    stats.allocations = found.allocation_count;
    stats.frees = found.free_count;
    stats.planned_allocations = statistics.planned_count;
    stats.remapped_pages = found.remaps;
    stats.arena_bytes = statistics.arena_bytes;
    stats.fallback_allocations = statistics.fallback_count;
    stats.diverged_steps = statistics.diverged_steps;
    sluice::capi::write_struct(out, stats, "out");
  });
}

sluice_status sluice_allocator_snapshot(sluice_allocator* allocator, const char* path,
                                        int32_t format) {
  return run_call("sluice_allocator_snapshot", [&] {
    FrameworkAllocator& of = inner(allocator);
    of.write_snapshot(sluice::capi::required_text(path, "path"), sluice::capi::format_of(format));
  });
}

sluice_status sluice_allocator_report(sluice_allocator* allocator, int32_t search_fixes,
                                      const char** json) {
  return run_call("sluice_allocator_report", [&] {
    FrameworkAllocator& of = inner(allocator);
    required(json, "json");
    thread_local std::string text;
    text = of.report(search_fixes != 0);
    *json = text.c_str();
  });
}
