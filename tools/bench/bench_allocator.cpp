#include "tools/bench/bench_allocator.hpp"

#include <sched.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "allocator/caching/planning_allocator.hpp"
#include "base/error.hpp"
#include "base/thread.hpp"
#include "device/counting/counting_device.hpp"
#include "tools/bench/allocation_mix.hpp"
#include "tools/bench/median.hpp"
#include "tools/replay/peers/torch_allocator.hpp"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// Iterations until memory is at hand and the plan is in use: two that are alike, one to plan, two
// that the plan serves.
constexpr int kWarmIterations = 8;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A caller has allocate(index), free(index) and step(), all thin.
//
// The replica has no locks. kWithLocks adds the two that the original takes in each call: the lock
// of the device's allocator, then the lock of the table of addresses.
struct NoLock {
  void lock() {}
  void unlock() {}
};
template <bool kWithLocks>
class NativeCaller {
 public:
  explicit NativeCaller(const AllocationMix& mix)
      : allocator_(mix.trace, UINT64_MAX, replay::TorchSegments::kFixed) {
    for (const std::uint32_t resident : mix.resident) allocate(resident);
  }
  void allocate(std::uint32_t index) {
    {
      const std::lock_guard lock(device_mutex_);
      if (!allocator_.allocate(index)) [[unlikely]] {
        throw InternalError("bench allocator: native is out of memory");
      }
    }
    const std::lock_guard lock(table_mutex_);
  }
  void free(std::uint32_t index) {
    { const std::lock_guard lock(table_mutex_); }
    const std::lock_guard lock(device_mutex_);
    allocator_.free(index, false);
  }
  void step() {}

 private:
  std::conditional_t<kWithLocks, std::recursive_mutex, NoLock> device_mutex_;
  std::conditional_t<kWithLocks, std::mutex, NoLock> table_mutex_;
  replay::TorchAllocator allocator_;
};

// The calls of one thread to an allocator that other threads may use too.
template <class Allocator>
class OwnCaller {
 public:
  OwnCaller(Allocator& allocator, allocator::StreamId stream, const AllocationMix& mix)
      : allocator_(allocator), addresses_(mix.trace.allocations.size()) {
    for (const record::TraceAllocation& wanted : mix.trace.allocations) {
      requests_.push_back({wanted.bytes, stream, wanted.category, wanted.name});
    }
  }
  void allocate(std::uint32_t index) { addresses_[index] = allocator_.allocate(requests_[index]); }
  void free(std::uint32_t index) { allocator_.free(addresses_[index]); }
  void step() { allocator_.begin_step(); }

 private:
  Allocator& allocator_;
  std::vector<allocator::AllocationRequest> requests_;
  std::vector<std::byte*> addresses_;
};

struct OwnMemory {
  explicit OwnMemory(const allocator::CachingAllocatorOptions& options = {}) {
    allocator = std::make_unique<allocator::CachingAllocator>(device, pages, options);
  }
  device::Stream& new_stream() { return *streams.emplace_back(device.create_stream("bench")); }

  device::CountingDevice device{UINT64_MAX};
  allocator::Ledger ledger{{UINT64_MAX, 0, 0}};
  allocator::PagePool pages{device, ledger, kPageBytes};
  std::vector<std::unique_ptr<device::Stream>> streams;
  std::unique_ptr<allocator::CachingAllocator> allocator;
};

using DynamicCaller = OwnCaller<allocator::CachingAllocator>;
using PlannedCaller = OwnCaller<allocator::PlanningAllocator>;

template <class Caller>
void run_iteration(Caller& caller, const AllocationMix& mix) {
  caller.step();
  for (const AllocationMix::Operation operation : mix.operations) {
    if (operation.is_alloc) {
      caller.allocate(operation.allocation);
    } else {
      caller.free(operation.allocation);
    }
  }
}

template <class Caller>
void warm_up(Caller& caller, const AllocationMix& mix) {
  for (int i = 0; i < kWarmIterations; ++i) run_iteration(caller, mix);
}

template <class Caller>
void allocate_resident(Caller& caller, const AllocationMix& mix) {
  for (const std::uint32_t resident : mix.resident) caller.allocate(resident);
}

double hit_share_since(const allocator::CachingAllocatorStatistics& before,
                       const allocator::CachingAllocatorStatistics& after) {
  return 1.0 - static_cast<double>(after.slow_count - before.slow_count) /
                   static_cast<double>(after.allocation_count - before.allocation_count);
}

// The mean time of an operation: the median over the iterations that fit in about `seconds`. The
// median drops iterations in which the thread lost its core.
template <class Caller>
double mean_ns(Caller& caller, const AllocationMix& mix, double seconds) {
  run_iteration(caller, mix);  // the caches of the processor are another's
  std::vector<double> iterations;
  const auto begin = Clock::now();
  auto last = begin;
  do {
    run_iteration(caller, mix);
    const auto now = Clock::now();
    iterations.push_back(std::chrono::duration<double, std::nano>(now - last).count());
    last = now;
  } while (std::chrono::duration<double>(last - begin).count() < seconds);
  return median(std::move(iterations)) / static_cast<double>(mix.operations.size());
}

using Samples = std::vector<std::uint32_t>;  // ns

// The time of `work`, between two readings of the clock.
template <class Work>
std::uint32_t ns_of(const Work& work) {
  const auto begin = Clock::now();
  work();
  const auto passed = Clock::now() - begin;
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count(), 0, UINT32_MAX));
}

std::uint32_t clock_ns() {
  Samples samples(10001);
  for (std::uint32_t& sample : samples) sample = ns_of([] {});
  std::nth_element(samples.begin(), samples.begin() + 5000, samples.end());
  return samples[5000];
}

template <class Caller>
Samples single_ns(Caller& caller, const AllocationMix& mix, double seconds) {
  constexpr std::size_t kMostSamples = std::size_t{1} << 22;
  Samples samples;
  samples.reserve(kMostSamples);
  std::fill_n(std::back_inserter(samples), kMostSamples, 1U);  // touched, so that no page is new
  samples.clear();
  run_iteration(caller, mix);
  const auto begin = Clock::now();
  do {
    caller.step();
    for (const AllocationMix::Operation operation : mix.operations) {
      samples.push_back(ns_of([&] {
        if (operation.is_alloc) {
          caller.allocate(operation.allocation);
        } else {
          caller.free(operation.allocation);
        }
      }));
    }
  } while (seconds_since(begin) < seconds &&
           samples.size() + mix.operations.size() <= kMostSamples);
  return samples;
}

void report_single(json& figures, const std::string& prefix, Samples samples,
                   std::uint32_t clock_cost_ns) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    const auto place = static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1));
    // A sample within the cost of the clock counts as the clock's resolution.
    return std::max(samples[place], clock_cost_ns + 1) - clock_cost_ns;
  };
  figures[prefix + "_p50_ns"] = at(0.5);
  figures[prefix + "_p99_ns"] = at(0.99);
  figures[prefix + "_p999_ns"] = at(0.999);
  figures[prefix + "_max_ns"] = at(1.0);
}

// Threads that share one CachingAllocator, each on its own stream or all on one. They live as long
// as the team, and sleep between rounds.
class Team {
 public:
  Team(const AllocationMix& mix, int threads, bool same_stream)
      : mix_(mix), memory_(roomy()), edge_(threads + 1), rates_(static_cast<std::size_t>(threads)) {
    allocator::StreamId stream = 0;
    for (int i = 0; i < threads; ++i) {
      if (i == 0 || !same_stream) stream = memory_.allocator->add_stream(memory_.new_stream());
      callers_.push_back(std::make_unique<DynamicCaller>(*memory_.allocator, stream, mix));
    }
    try {
      for (std::size_t i = 0; i < callers_.size(); ++i) {
        threads_.push_back(start_thread("bench caller", [this, i] { serve(i); }));
      }
    } catch (...) {  // the threads that were started must end
      done_ = true;
      for (std::size_t i = threads_.size(); i < callers_.size(); ++i) edge_.arrive_and_drop();
      edge_.arrive_and_wait();
      throw;
    }
    static_cast<void>(ops_per_s(0.0));
    before_ = memory_.allocator->statistics();
  }
  ~Team() {
    done_ = true;
    edge_.arrive_and_wait();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Operations per second of all threads together, each measured over its own time.
  double ops_per_s(double seconds) {
    seconds_ = seconds;
    edge_.arrive_and_wait();  // the threads begin
    edge_.arrive_and_wait();  // the threads have ended
    double sum = 0.0;
    for (const double rate : rates_) sum += rate;
    return sum;
  }

  // The share of the allocations since the team was made that a free block served.
  double hit_share() { return hit_share_since(before_, memory_.allocator->statistics()); }

 private:
  // Room for the peaks of all streams at once. Otherwise streams would take pages from each other,
  // as often as their iterations happen to overlap, and that is not a hit.
  static allocator::CachingAllocatorOptions roomy() {
    allocator::CachingAllocatorOptions options;
    options.growth_slack = 1024.0;
    return options;
  }
  // Pins each thread to its own processor: the scheduler may wake two threads on one, and part them
  // only after a round has ended.
  static void pin_to_core(std::size_t i) {
    cpu_set_t all;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return;
    std::size_t left = i % static_cast<std::size_t>(std::max(1, CPU_COUNT(&all)));
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &all) || left-- > 0) continue;
      cpu_set_t mine;
      CPU_ZERO(&mine);
      CPU_SET(core, &mine);
      static_cast<void>(sched_setaffinity(0, sizeof mine, &mine));  // best effort
      return;
    }
  }
  void serve(std::size_t i) {
    pin_to_core(i);
    warm_up(*callers_[i], mix_);
    for (;;) {
      edge_.arrive_and_wait();
      if (done_) return;
      rates_[i] = rate_of(*callers_[i]);
      edge_.arrive_and_wait();
    }
  }

  // Counts all of the thread's time, including its waits for other threads.
  double rate_of(DynamicCaller& caller) const {
    run_iteration(caller, mix_);  // the caches of the processor are another's
    std::size_t iterations = 0;
    const auto begin = Clock::now();
    double passed_s = 0.0;
    do {
      run_iteration(caller, mix_);
      ++iterations;
      passed_s = seconds_since(begin);
    } while (passed_s < seconds_);
    return static_cast<double>(iterations * mix_.operations.size()) / passed_s;
  }

  const AllocationMix& mix_;
  OwnMemory memory_;
  std::vector<std::unique_ptr<DynamicCaller>> callers_;
  std::barrier<> edge_;
  // Written by one side between two edges, and read by the other after the second.
  double seconds_ = 0.0;
  bool done_ = false;
  std::vector<double> rates_;
  allocator::CachingAllocatorStatistics before_;
  std::vector<std::jthread> threads_;  // last: joined first
};

// All measurements on one mix.
class MixBench {
 public:
  MixBench(AllocationMix mix, int threads)
      : mix_(std::move(mix)),
        native_(mix_),
        native_locked_(mix_),
        planner_(planned_memory_.device, *planned_memory_.allocator, in_step_planning()),
        dynamic_(*memory_.allocator, memory_.allocator->add_stream(memory_.new_stream()), mix_),
        recorded_(*recorded_memory_.allocator,
                  recorded_memory_.allocator->add_stream(recorded_memory_.new_stream()), mix_),
        planned_(planner_, planner_.add_stream(planned_memory_.new_stream()), mix_),
        one_thread_(mix_, 1, false),
        own_streams_(mix_, threads, false),
        same_stream_(mix_, threads, true) {
    allocate_resident(dynamic_, mix_);
    allocate_resident(recorded_, mix_);
    allocate_resident(planned_, mix_);
    warm_up(native_, mix_);
    warm_up(native_locked_, mix_);
    warm_up(dynamic_, mix_);
    warm_up(recorded_, mix_);
    warm_up(planned_, mix_);
    before_ = memory_.allocator->statistics();
    planned_before_ = planner_.statistics();
  }

  void run_round(double seconds) {
    const double native = mean_ns(native_, mix_, seconds);
    const double native_locked = mean_ns(native_locked_, mix_, seconds);
    const double dynamic = mean_ns(dynamic_, mix_, seconds);
    const double planned = mean_ns(planned_, mix_, seconds);
    const double recorded = mean_ns(recorded_, mix_, seconds);
    const double one_thread = one_thread_.ops_per_s(seconds);
    const double own_streams = own_streams_.ops_per_s(seconds);
    const double same_stream = same_stream_.ops_per_s(seconds);
    // An allocation is one event, a free is two, and there are as many frees as allocations.
    add("record", "ns_per_event", (recorded - dynamic) / 1.5);
    add("native", "ns", native);
    add("native_locked", "ns", native_locked);
    add("dynamic", "ns", dynamic);
    add("planned", "ns", planned);
    add("dynamic", "locked_ratio", native_locked / dynamic);
    add("planned", "locked_ratio", native_locked / planned);
    add("dynamic", "ratio", native / dynamic);
    add("planned", "ratio", native / planned);
    add("one_thread", "ops_per_s", one_thread);
    add("own_streams", "ops_per_s", own_streams);
    add("own_streams", "scaling", own_streams / one_thread);
    add("same_stream", "ops_per_s", same_stream);
    add("same_stream", "scaling", same_stream / one_thread);
  }

  void report(json& figures, double seconds) {
    figures[mix_.name + "_operations"] = mix_.operations.size();
    for (const auto& [figure, values] : rounds_) figures[figure] = median(values);
    const std::uint32_t clock_cost_ns = clock_ns();
    report_single(figures, "native_" + mix_.name, single_ns(native_, mix_, seconds), clock_cost_ns);
    report_single(figures, "dynamic_" + mix_.name, single_ns(dynamic_, mix_, seconds),
                  clock_cost_ns);
    report_single(figures, "planned_" + mix_.name, single_ns(planned_, mix_, seconds),
                  clock_cost_ns);
    figures["dynamic_" + mix_.name + "_hit_share"] =
        hit_share_since(before_, memory_.allocator->statistics());
    figures["own_streams_" + mix_.name + "_hit_share"] = own_streams_.hit_share();
    figures["same_stream_" + mix_.name + "_hit_share"] = same_stream_.hit_share();
    const allocator::PlanningAllocatorStatistics planned = planner_.statistics();
    const auto answered =
        static_cast<double>(planned.planned_count - planned_before_.planned_count);
    figures["planned_" + mix_.name + "_share"] =
        answered /
        (answered + static_cast<double>(planned.fallback_count - planned_before_.fallback_count));
  }

 private:
  static allocator::CachingAllocatorOptions with_recorder(record::MemoryRecorder& recorder) {
    allocator::CachingAllocatorOptions options;
    options.recorder = &recorder;
    return options;
  }
  static allocator::PlanningAllocatorOptions in_step_planning() {
    allocator::PlanningAllocatorOptions options;
    options.in_background = false;
    return options;
  }
  void add(const std::string& who, const std::string& what, double value) {
    rounds_[who + "_" + mix_.name + "_" + what].push_back(value);
  }

  const AllocationMix mix_;
  record::MemoryRecorder recorder_{std::size_t{1} << 16};
  OwnMemory memory_;
  OwnMemory recorded_memory_{with_recorder(recorder_)};
  OwnMemory planned_memory_;
  NativeCaller<false> native_;
  NativeCaller<true> native_locked_;
  allocator::PlanningAllocator planner_;
  DynamicCaller dynamic_;
  DynamicCaller recorded_;
  PlannedCaller planned_;
  Team one_thread_;
  Team own_streams_;
  Team same_stream_;
  allocator::CachingAllocatorStatistics before_;
  allocator::PlanningAllocatorStatistics planned_before_;
  std::map<std::string, std::vector<double>> rounds_;
};

}  // namespace

json run_allocator_bench(const AllocatorBenchOptions& options) {
  if (options.threads < 0 || options.threads > 1024) {
    throw InputError("bench allocator: threads must be from 0 to 1024");
  }
  if (options.rounds < 1) throw InputError("bench allocator: rounds must be at least 1");
  if (!(options.seconds > 0.0) || !std::isfinite(options.seconds)) {
    throw InputError("bench allocator: seconds must be above 0");
  }
  const int threads = options.threads > 0
                          ? options.threads
                          : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::unique_ptr<MixBench>> benches;
  for (AllocationMix& mix : dense_mixes(options.layers)) {
    benches.push_back(std::make_unique<MixBench>(std::move(mix), threads));
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (const auto& bench : benches) bench->run_round(options.seconds / options.rounds);
  }
  json figures = {{"threads", threads}, {"rounds", options.rounds}};
  for (const auto& bench : benches) bench->report(figures, options.seconds);
  return {{"event", "bench"}, {"name", "allocator"}, {"figures", figures}};
}

}  // namespace sluice::bench
