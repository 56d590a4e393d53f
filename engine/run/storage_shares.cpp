#include "engine/run/storage_shares.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/run_id.hpp"
#include "base/units.hpp"
#include "engine/config/schema.hpp"
#include "engine/planner/machine_check.hpp"
#include "offload/striped_space.hpp"

namespace sluice::run {
namespace {

constexpr std::uint64_t kBlockBytes = kLeastStagingBytes;
constexpr std::uint64_t kBlocks = 64;    // of the file
constexpr std::uint64_t kMostWave = 16;  // requests at once
constexpr int kRounds = 3;
constexpr double kSecondsARound = 0.1;  // of each path, at least one wave
// With less state than this on each path, measuring takes longer than it gains. The file of a trial
// takes as much room for a moment. A path that turns out slow may get less state afterwards.
constexpr std::uint64_t kLeastMeasuredBytes = kBlocks * kBlockBytes;

// Every request shares the ownership, because a request that misses its deadline still uses the
// memory until it ends.
using Staging = std::shared_ptr<std::byte>;

class PathTrial {
 public:
  // staging: memory for `wave` blocks. wave: the number of requests at once, a power of two and at
  // most kMostWave.
  PathTrial(offload::StorageEngine& engine, const std::string& directory, Staging staging,
            std::uint64_t wave)
      : engine_(engine),
        staging_(std::move(staging)),
        wave_(wave),
        file_(engine.open(directory + "/sluice-" + make_run_id().hex() + "-0" +
                              offload::StripedSpace::kScratchSuffix,
                          offload::StorageFileMode::kScratch, kBlocks * kBlockBytes)) {
    // This round is not timed: a block that was never written is cheap to read and dear to write.
    for (std::uint64_t block = 0; block < kBlocks; block += wave_) move_wave(block, false);
  }
  ~PathTrial() { engine_.close(file_); }
  PathTrial(const PathTrial&) = delete;
  PathTrial& operator=(const PathTrial&) = delete;

  void round() {
    const auto begin = std::chrono::steady_clock::now();
    double seconds = 0;
    double bytes = 0;
    while (seconds < kSecondsARound) {
      move_wave(next_ % kBlocks, true);
      next_ += wave_;
      bytes += static_cast<double>(wave_ * kBlockBytes);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    bytes_per_s_ = std::max(bytes_per_s_, bytes / seconds);
  }
  // The rate of the best round: a pause of the machine must not decide for a whole run.
  double bytes_per_s() const { return bytes_per_s_; }

 private:
  // Moves `wave_` consecutive blocks with one request each, and waits for them. With `reads`, every
  // other request is a read; the rest are writes.
  void move_wave(std::uint64_t first_block, bool reads) {
    struct Outcome {
      Mutex mutex;
      std::exception_ptr error SLUICE_GUARDED_BY(mutex);  // the first
    };
    const auto outcome = std::make_shared<Outcome>();
    for (std::uint64_t i = 0; i < wave_; ++i) {
      offload::StorageRequest request;
      request.op = reads && (first_block + i) % 2 == 0 ? offload::StorageOp::kRead
                                                       : offload::StorageOp::kWrite;
      request.file = file_;
      request.offset = (first_block + i) * kBlockBytes;
      request.data = staging_.get() + i * kBlockBytes;
      request.bytes = kBlockBytes;
      engine_.submit(request, [outcome, staging = staging_](const std::exception_ptr& error) {
        const MutexLock lock(outcome->mutex);
        if (error && !outcome->error) outcome->error = error;
      });
    }
    engine_.drain(Deadline::after_seconds(kDefaultDeadlineSeconds));
    const MutexLock lock(outcome->mutex);
    if (outcome->error) std::rethrow_exception(outcome->error);
  }

  offload::StorageEngine& engine_;
  const Staging staging_;
  const std::uint64_t wave_;
  const offload::StorageFileId file_;
  std::uint64_t next_ = 0;
  double bytes_per_s_ = 0;
};

void say_shares(const config::Config& config, const std::vector<double>& speeds,
                const std::vector<std::uint32_t>& shares) {
  std::string words;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    words += (i > 0 ? ", " : "") + std::to_string(shares[i]) + " on '" +
             config.memory.storage_paths[i] + "' (" +
             format_bytes(static_cast<std::uint64_t>(speeds[i])) + "/s)";
  }
  const std::uint32_t total = std::accumulate(shares.begin(), shares.end(), 0u);
  log(LogLevel::kInfo, "of " + std::to_string(total) + " stripes on storage: " + words);
}

}  // namespace

std::vector<double> measure_path_speeds(offload::StorageEngine& engine,
                                        const std::vector<std::string>& directories,
                                        std::uint64_t staging_bytes) {
  SLUICE_CHECK(staging_bytes >= kLeastStagingBytes);
  const std::uint64_t wave = std::bit_floor(std::min(kMostWave, staging_bytes / kBlockBytes));
  const Staging staging(
      static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, wave * kBlockBytes)), std::free);
  if (!staging) throw std::bad_alloc();
  std::fill_n(staging.get(), wave * kBlockBytes, std::byte{1});
  std::vector<std::unique_ptr<PathTrial>> trials;
  for (const std::string& directory : directories) {
    trials.push_back(std::make_unique<PathTrial>(engine, directory, staging, wave));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& trial : trials) trial->round();
  }
  std::vector<double> speeds;
  for (const auto& trial : trials) speeds.push_back(trial->bytes_per_s());
  return speeds;
}

std::vector<std::uint32_t> shares_within_room(const config::Config& config,
                                              const std::vector<double>& speeds,
                                              std::uint64_t storage_bytes) {
  constexpr double kLess = 0.8;
  constexpr int kMostTries = 32;  // 0.8^32 of its speed: no path keeps more than its one stripe
  std::vector<double> weights = speeds;
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    std::vector<std::uint32_t> shares = offload::shares_by_speed(weights);
    const std::vector<std::size_t> full =
        planner::paths_without_room(config, offload::StripeLayout(shares), storage_bytes);
    if (full.empty()) return shares;
    for (const std::size_t path : full) weights[path] *= kLess;
  }
  return std::vector<std::uint32_t>(speeds.size(), 1);
}

std::vector<std::uint32_t> choose_storage_shares(const config::Config& config,
                                                 std::uint64_t storage_bytes) {
  const auto& memory = config.memory;
  if (memory.storage_paths.size() < 2 || storage_bytes == 0) return {};
  if (!memory.storage_shares.empty()) return offload::shares_by_ratio(memory.storage_shares);
  const std::string kind =
      std::get<std::string>(config::find_config_key("memory.storage_engine")->read(config));
  std::vector<std::uint32_t> even(memory.storage_paths.size(), 1);
  if (storage_bytes < kLeastMeasuredBytes * memory.storage_paths.size()) return even;
  if (memory.pinned_bytes < kLeastStagingBytes) return even;
  try {
    const auto engine = offload::make_storage_engine(kind, {});
    // The run's own staging is not allocated yet, so its budget is free.
    const std::vector<double> speeds =
        measure_path_speeds(*engine, memory.storage_paths, memory.pinned_bytes);
    std::vector<std::uint32_t> shares = shares_within_room(config, speeds, storage_bytes);
    say_shares(config, speeds, shares);
    return shares;
  } catch (const InputError& error) {
    // The run itself may have the room that its measurement lacks.
    log(LogLevel::kInfo, std::string("storage is striped evenly: ") + error.what());
  } catch (const IoError& error) {
    log(LogLevel::kWarning, std::string("storage is striped evenly: ") + error.what());
  }
  return even;
}

}  // namespace sluice::run
