#include "engine/host/framework_allocator.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <sstream>
#include <utility>

#include "allocator/oom/oom_fixes.hpp"
#include "allocator/oom/oom_text.hpp"
#include "allocator/record/format/memory_trace_csv.hpp"
#include "allocator/record/format/torch_snapshot.hpp"
#include "base/json_text.hpp"
#include "base/posix_file.hpp"

namespace sluice::host {
namespace {

// A request is tried again this often while the callback says that it has freed memory. A callback
// that always says so must not hang the program.
constexpr int kMostPressureCalls = 16;

// No device has so many bytes. The allocators round sizes up, which must not pass 2^64.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

std::unique_ptr<record::MemoryRecorder> make_recorder(std::size_t events) {
  return events == 0 ? nullptr : std::make_unique<record::MemoryRecorder>(events);
}

allocator::CachingAllocatorOptions caching_options(record::MemoryRecorder* recorder) {
  allocator::CachingAllocatorOptions options;
  options.recorder = recorder;
  return options;
}

// The allocators take a foreign address for a bug of their caller. Here the caller is the host
// program, so it is bad input.
template <typename Work>
void refuse_foreign_block(const void* data, Work work) {
  try {
    work();
  } catch (const InternalError&) {
    std::ostringstream address;
    address << data;
    throw InputError("the address " + address.str() +
                     " is not a block of this allocator, or it is freed already");
  }
}

}  // namespace

FrameworkAllocator::FrameworkAllocator(std::shared_ptr<HostEngine> engine,
                                       const FrameworkAllocatorOptions& options)
    : engine_(std::move(engine)),
      pages_(engine_->device(), engine_->ledger(), engine_->device().facts().granularity_bytes),
      recorder_(make_recorder(options.recorded_events)),
      caching_(engine_->device(), pages_, caching_options(recorder_.get())) {
  if (options.plans) {
    planning_ = std::make_unique<allocator::PlanningAllocator>(engine_->device(), caching_);
  }
}

// Streams are few and rarely new, so one lock serves all threads.
allocator::StreamId FrameworkAllocator::stream_id(void* native, bool movable, bool* is_new) {
  const MutexLock lock(mutex_);
  const auto found = streams_.ids.find(native);
  if (is_new != nullptr) *is_new = found == streams_.ids.end();
  if (found != streams_.ids.end()) return found->second;
  if (streams_.ids.size() == allocator::CachingAllocator::kMaxStreams) {
    throw LimitReached("an allocator serves at most " +
                       std::to_string(allocator::CachingAllocator::kMaxStreams) +
                       " streams, and it has been given as many");
  }
  streams_.wrappers.push_back(engine_->device().wrap_stream(
      native, "host program's stream " + std::to_string(streams_.wrappers.size())));
  device::Stream& stream = *streams_.wrappers.back();
  const allocator::StreamId id =
      planning_ ? planning_->add_stream(stream, movable) : caching_.add_stream(stream, movable);
  streams_.ids.emplace(native, id);
  return id;
}

bool FrameworkAllocator::pin_stream(void* native_stream) {
  bool is_new = false;
  stream_id(native_stream, /*movable=*/false, &is_new);
  return is_new;
}

std::byte* FrameworkAllocator::try_once(const allocator::AllocationRequest& request) {
  return planning_ ? planning_->allocate(request) : caching_.allocate(request);
}

std::byte* FrameworkAllocator::allocate(std::uint64_t bytes, void* native_stream,
                                        std::uint32_t site) {
  if (bytes > kMostBytes) {
    throw OutOfMemory(Tier::kDevice, Category::kExternal, bytes,
                      engine_->ledger().cap_bytes(Tier::kDevice));
  }
  check_site(site);
  const allocator::AllocationRequest request{
      .bytes = bytes, .stream = stream_id(native_stream), .name = site};
  for (int calls = 0;; ++calls) {
    std::shared_ptr<const PressureCallback> pressure;
    try {
      return try_once(request);
    } catch (const allocator::OutOfMemoryReported& error) {
      {
        const MutexLock lock(mutex_);
        last_report_ = error.report;
        pressure = pressure_;
      }
      if (pressure == nullptr || calls == kMostPressureCalls || !(*pressure)(bytes)) throw;
    }
  }
}

void FrameworkAllocator::free(void* data) {
  if (withheld_.holds(data)) return;
  auto* const block = static_cast<std::byte*>(data);
  refuse_foreign_block(data, [&] { planning_ ? planning_->free(block) : caching_.free(block); });
}

void FrameworkAllocator::record_use(void* data, void* native_stream) {
  auto* const block = static_cast<std::byte*>(data);
  const allocator::StreamId stream = stream_id(native_stream);
  refuse_foreign_block(data, [&] {
    planning_ ? planning_->record_use(block, stream) : caching_.record_use(block, stream);
  });
}

// A PlanningAllocator passes the step on.
void FrameworkAllocator::begin_step() {
  planning_ ? planning_->begin_step() : caching_.begin_step();
}

// A snapshot could not be written with a site that has no name.
void FrameworkAllocator::check_site(std::uint32_t site) {
  const std::uint32_t last = last_site_;
  if (site <= last) return;
  throw InputError("site " + std::to_string(site) +
                   " has no name; the last one that was named is " + std::to_string(last));
}

// Without a recorder, numbers have no names anywhere, but stay apart in reports.
std::uint32_t FrameworkAllocator::intern_site(std::string_view name) {
  const MutexLock lock(mutex_);
  std::uint32_t number = static_cast<std::uint32_t>(sites_.size() + 1);
  if (recorder_ != nullptr) {
    number = recorder_->intern(name);
  } else {
    number = sites_.try_emplace(std::string(name), number).first->second;
  }
  last_site_ = std::max<std::uint32_t>(last_site_, number);
  return number;
}

void FrameworkAllocator::set_pressure_callback(PressureCallback callback) {
  auto replacement =
      callback ? std::make_shared<const PressureCallback>(std::move(callback)) : nullptr;
  const MutexLock lock(mutex_);
  pressure_.swap(replacement);
}

// To the CachingAllocator an arena is one block, whatever lives there. The two counts are read one
// after the other, so other threads' calls in between may be in one of them alone.
FrameworkAllocator::Statistics FrameworkAllocator::statistics() {
  Statistics result{.blocks = caching_.statistics()};
  if (!planning_) return result;
  const allocator::PlanningAllocatorStatistics planned = planning_->statistics();
  const auto replace = [](std::uint64_t& count, std::uint64_t arenas, std::uint64_t inside) {
    count = count - std::min(count, arenas) + inside;
  };
  replace(result.blocks.allocation_count, planned.plan_count, planned.planned_count);
  replace(result.blocks.free_count, planned.plan_count - planned.held_arenas,
          planned.planned_count - planned.arena_live_count);
  replace(result.blocks.live_bytes, planned.held_arena_bytes,
          std::accumulate(planned.arena_live_by_category.begin(),
                          planned.arena_live_by_category.end(), std::uint64_t{0}));
  result.planned_count = planned.planned_count;
  result.fallback_count = planned.fallback_count;
  result.diverged_steps = planned.diverged_steps;
  result.arena_bytes = planned.arena_bytes;
  return result;
}

void FrameworkAllocator::write_snapshot(const std::string& path, SnapshotFormat format) {
  check_replaceable(path);
  const record::MemorySnapshot snapshot = planning_ ? planning_->snapshot() : caching_.snapshot();
  const std::string unfinished = path + ".tmp";
  PosixFile file = PosixFile::create(unfinished);
  std::uint64_t offset = 0;
  const auto append = [&](std::string_view text) {
    file.write_all(offset, std::as_bytes(std::span(text.data(), text.size())));
    offset += text.size();
  };
  if (format == SnapshotFormat::kTorch) {
    record::write_torch_snapshot(snapshot, append);
  } else {
    std::ostringstream text;
    record::write_memory_trace_csv(snapshot, text);
    append(text.view());
  }
  rename_durably(unfinished, path);
}

std::string FrameworkAllocator::report(bool searches_fixes) {
  std::shared_ptr<const allocator::OomReport> report;
  {
    const MutexLock lock(mutex_);
    report = last_report_;
  }
  if (report == nullptr) return "";
  allocator::OomFixes fixes;
  if (searches_fixes) fixes = allocator::find_fixes(*report);
  const nlohmann::json json = allocator::oom_json(*report, searches_fixes ? &fixes : nullptr);
  return lenient_json_text(json);
}

}  // namespace sluice::host
