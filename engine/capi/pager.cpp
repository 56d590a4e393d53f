// Pagers: weights in windows, state in pinned memory. Arguments are checked here; host/ does the
// work.
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "engine/capi/call.hpp"
#include "engine/capi/handles.hpp"
#include "engine/host/unit_pager.hpp"

struct sluice_pager {
  std::unique_ptr<sluice::host::UnitPager> inner;
  std::int32_t device_type = SLUICE_DEVICE_CPU;
  std::int32_t device_id = 0;
  std::atomic<bool> busy{false};  // a thread is in a call
};

namespace sluice::capi {
namespace {

// Holds a pager for one call. A second thread gets SLUICE_E_BUSY.
class PagerTurn {
 public:
  explicit PagerTurn(sluice_pager* pager) : pager_(required(pager, "pager")) {
    if (pager_.busy.exchange(true, std::memory_order_acquire)) {
      throw CallError(SLUICE_E_BUSY, "another thread is in a call on this pager");
    }
  }
  ~PagerTurn() { pager_.busy.store(false, std::memory_order_release); }
  PagerTurn(const PagerTurn&) = delete;
  PagerTurn& operator=(const PagerTurn&) = delete;
  host::UnitPager* operator->() { return pager_.inner.get(); }

  // The native handle of a stream of the pager's device.
  void* native_of(const sluice_stream* stream) const {
    if (stream == nullptr) return nullptr;
    if (stream->device_type != pager_.device_type || stream->device_id != pager_.device_id) {
      throw InputError("the stream is of another device than the engine");
    }
    return stream->native;
  }

 private:
  sluice_pager& pager_;
};

host::StatePlace rest_of(std::int32_t number, const char* name) {
  switch (number) {
    case SLUICE_STATE_AUTO:
      return host::StatePlace::kAuto;
    case SLUICE_STATE_PINNED:
      return host::StatePlace::kPinned;
    case SLUICE_STATE_STORAGE:
      return host::StatePlace::kStorage;
    default:
      throw InputError(std::string(name) + " is " + std::to_string(number) +
                       "; use a SLUICE_STATE_ number");
  }
}

host::PagedPart part_of(std::int32_t number) {
  if (number != SLUICE_PART_WEIGHT && number != SLUICE_PART_STATE) {
    throw InputError("part is " + std::to_string(number) + "; use a SLUICE_PART_ number");
  }
  return static_cast<host::PagedPart>(number);
}

sluice_pager_stats stats_of(const host::UnitPager::Statistics& found) {
  sluice_pager_stats stats = {};
  stats.sealed = found.is_sealed ? 1 : 0;
  stats.window_bytes = found.planned_bytes[SLUICE_TIER_DEVICE];
  stats.pinned_bytes = found.planned_bytes[SLUICE_TIER_PINNED];
  stats.storage_bytes = found.planned_bytes[SLUICE_TIER_STORAGE];
  stats.stored_weight_bytes = found.stored_weight_bytes;
  stats.stored_state_bytes = found.stored_state_bytes;
  stats.uses = found.fetches.uses;
  stats.demand_fetches = found.fetches.demand_fetches;
  stats.prefetches = found.fetches.prefetches;
  stats.fetched_bytes = found.fetches.fetched_bytes;
  stats.mapped_pages = found.fetches.mapped_pages;
  stats.plans = found.fetches.plans;
  stats.deviations = found.fetches.deviations;
  stats.storage_read_bytes = found.storage_read_bytes;
  stats.storage_write_bytes = found.storage_write_bytes;
  stats.wait_ns = static_cast<std::uint64_t>(found.fetches.wait_seconds * 1e9);
  return stats;
}

}  // namespace
}  // namespace sluice::capi

using sluice::capi::PagerTurn;
using sluice::capi::required;
using sluice::capi::run_call;

sluice_status sluice_pager_create(sluice_engine* engine, const sluice_pager_options* options,
                                  sluice_pager** out) {
  return run_call("sluice_pager_create", [&] {
    const std::shared_ptr<sluice::host::HostEngine>& inner = required(engine, "engine").inner;
    required(out, "out");
    const sluice_pager_options from =
        sluice::capi::read_or_default(options, SLUICE_PAGER_OPTIONS_INIT, "options");
    auto pager = std::make_unique<sluice_pager>();
    if (inner->options().cuda) pager->device_type = SLUICE_DEVICE_CUDA;
    pager->device_id = inner->options().device_id;
    pager->inner = std::make_unique<sluice::host::UnitPager>(
        inner, sluice::host::PagerOptions{sluice::capi::rest_of(from.weights, "options.weights"),
                                          sluice::capi::rest_of(from.state, "options.state"),
                                          from.window_bytes});
    *out = pager.release();
  });
}

void sluice_pager_destroy(sluice_pager* pager) {
  if (!sluice::capi::is_forked_child()) delete pager;
}

sluice_status sluice_pager_add_unit(sluice_pager* pager, const char* name, sluice_unit* out) {
  return run_call("sluice_pager_add_unit", [&] {
    PagerTurn turn(pager);
    required(out, "out");
    out->index = turn->add_unit(sluice::capi::required_name(name, "name"));
  });
}

sluice_status sluice_pager_add(sluice_pager* pager, sluice_unit unit, int32_t part, uint64_t bytes,
                               const void* data, sluice_paged* out) {
  return run_call("sluice_pager_add", [&] {
    PagerTurn turn(pager);
    required(out, "out");
    out->index = turn->add_tensor(unit.index, sluice::capi::part_of(part), bytes, data);
  });
}

sluice_status sluice_pager_seal(sluice_pager* pager) {
  return run_call("sluice_pager_seal", [&] { PagerTurn(pager)->seal(); });
}

sluice_status sluice_pager_window(sluice_pager* pager, sluice_paged tensor, void** out) {
  return run_call("sluice_pager_window", [&] {
    PagerTurn turn(pager);
    required(out, "out");
    *out = turn->window(tensor.index);
  });
}

sluice_status sluice_pager_home(sluice_pager* pager, sluice_paged tensor, void** out) {
  return run_call("sluice_pager_home", [&] {
    PagerTurn turn(pager);
    required(out, "out");
    *out = turn->home(tensor.index);
  });
}

sluice_status sluice_pager_staged(sluice_pager* pager, sluice_paged tensor, void** out) {
  return run_call("sluice_pager_staged", [&] {
    PagerTurn turn(pager);
    required(out, "out");
    *out = turn->staged(tensor.index);
  });
}

sluice_status sluice_pager_begin_pass(sluice_pager* pager) {
  return run_call("sluice_pager_begin_pass", [&] { PagerTurn(pager)->begin_pass(); });
}

sluice_status sluice_pager_acquire(sluice_pager* pager, sluice_unit unit,
                                   const sluice_stream* stream) {
  return run_call("sluice_pager_acquire", [&] {
    PagerTurn turn(pager);
    turn->acquire(unit.index, turn.native_of(stream));
  });
}

sluice_status sluice_pager_release(sluice_pager* pager, sluice_unit unit,
                                   const sluice_stream* stream) {
  return run_call("sluice_pager_release", [&] {
    PagerTurn turn(pager);
    turn->release(unit.index, turn.native_of(stream));
  });
}

sluice_status sluice_pager_stage(sluice_pager* pager, sluice_unit unit, sluice_unit next) {
  return run_call("sluice_pager_stage", [&] {
    PagerTurn turn(pager);
    turn->stage(unit.index, next.index == SLUICE_NONE ? std::nullopt : std::optional(next.index));
  });
}

sluice_status sluice_pager_unstage(sluice_pager* pager, sluice_unit unit) {
  return run_call("sluice_pager_unstage", [&] { PagerTurn(pager)->unstage(unit.index); });
}

sluice_status sluice_pager_settle(sluice_pager* pager) {
  return run_call("sluice_pager_settle", [&] { PagerTurn(pager)->settle(); });
}

sluice_status sluice_pager_read(sluice_pager* pager, sluice_paged tensor, uint64_t first,
                                void* into, uint64_t bytes) {
  return run_call("sluice_pager_read", [&] {
    PagerTurn turn(pager);
    turn->read(tensor.index, first, bytes, &required(static_cast<std::byte*>(into), "into"));
  });
}

sluice_status sluice_pager_write(sluice_pager* pager, sluice_paged tensor, uint64_t first,
                                 const void* from, uint64_t bytes) {
  return run_call("sluice_pager_write", [&] {
    PagerTurn turn(pager);
    turn->write(tensor.index, first, bytes, &required(static_cast<const std::byte*>(from), "from"));
  });
}

sluice_status sluice_pager_get_stats(sluice_pager* pager, sluice_pager_stats* out) {
  return run_call("sluice_pager_get_stats", [&] {
    PagerTurn turn(pager);
    sluice::capi::write_struct(out, sluice::capi::stats_of(turn->statistics()), "out");
  });
}
