#include "tools/bench/bench_storage.hpp"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/units.hpp"
#include "tools/bench/fio.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxRingBytes = 8 * kMiB;
constexpr std::uint64_t kMinFileBytes = 16 * kMiB;
// Rewriting and reading go on until the time is up or the file has been passed so often.
constexpr std::uint64_t kPasses = 16;
// What training tags: 4,096 elements (engine/runtime/run_memory.cpp).
constexpr std::uint64_t kTaggedElems = 4096;

struct NamedMix {
  StorageMix mix;
  const char* name;
};
constexpr std::array<NamedMix, 3> kMixes{
    {{StorageMix::kRead, "read"}, {StorageMix::kWrite, "write"}, {StorageMix::kDuplex, "duplex"}}};

// A directory of its own, so that nothing of the user's can be in the way; removed with its files.
class OwnDirectory {
 public:
  explicit OwnDirectory(const std::string& parent) {
    std::string pattern = parent + "/sluice_bench_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw InputError("directory '" + parent +
                       "' cannot hold the benchmark's file: " + std::strerror(errno));
    }
    path_ = pattern;
  }
  ~OwnDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  OwnDirectory(const OwnDirectory&) = delete;
  OwnDirectory& operator=(const OwnDirectory&) = delete;
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void check(const StorageBenchOptions& options) {
  const bool block_ok = options.block_bytes >= 4096 && options.block_bytes % 4096 == 0;
  if (!block_ok) throw InputError("bench storage: the block must be a multiple of 4096 bytes");
  if (options.depth < 2 || options.block_bytes > kMaxRingBytes / options.depth) {
    throw InputError("bench storage: depth must be at least 2, and depth times block at most 8MiB");
  }
  if (options.bytes < kMinFileBytes)
    throw InputError("bench storage: the size must be at least 16MiB");
  if (!(options.seconds > 0 && options.seconds <= 3600)) {
    throw InputError("bench storage: the time must be above 0 s and at most 3600 s");
  }
}

void add(json& figures, const std::string& prefix, const StorageRate& rate) {
  constexpr auto kBytesPerGib = static_cast<double>(kGiB);
  figures[prefix + "_gib_per_s"] = rate.bytes_per_s() / kBytesPerGib;
  figures[prefix + "_cpu_ms_per_gib"] = rate.cpu_s_per_byte() * kBytesPerGib * 1e3;
}

double ratio(double value, double yardstick) {
  return yardstick > 0 ? value / yardstick : 0;
}

StorageRate sum(const StorageRate& a, const StorageRate& b) {
  return {a.bytes + b.bytes, a.seconds + b.seconds, a.cpu_seconds + b.cpu_seconds};
}

// The first pass over the file turns preallocated extents into written ones; it is not what
// training does in its steady state, so it is reported apart. Returns how far it came.
std::uint64_t write_first(StorageEngine& engine, StorageLoad load, void* ring, json& figures) {
  load.bytes = load.file_bytes;
  const StorageRate first = measure_storage(engine, load, StorageMix::kWrite, ring);
  add(figures, "first_write", first);
  const std::uint64_t written = std::max(first.bytes, 2 * load.block_bytes);
  return std::min(written, load.file_bytes);
}

// Without fio, or with one that cannot run here, our own figures stand alone.
std::optional<StorageRate> try_fio(const FioLoad& load, StorageMix mix, std::string& why_not) {
  try {
    auto rate = run_fio(load, mix);
    if (!rate) why_not = "not installed";
    return rate;
  } catch (const Error& error) {
    why_not = std::string("failed: ") + error.what();
    return std::nullopt;
  }
}

// Engine, fio, engine: what drifts (a shared disk, a cache that empties) meets both alike.
void measure_mix(StorageEngine& engine, StorageLoad load, const NamedMix& mix, FioLoad fio,
                 void* ring, json& figures) {
  fio.seconds = load.seconds;
  load.seconds /= 2;
  load.bytes = load.file_bytes * kPasses;
  const std::string name = mix.name;
  const StorageRate before = measure_storage(engine, load, mix.mix, ring);
  std::string why_not;
  const auto yardstick = try_fio(fio, mix.mix, why_not);
  const StorageRate rate = sum(before, measure_storage(engine, load, mix.mix, ring));
  add(figures, name, rate);
  if (!yardstick) {
    figures["fio"] = why_not;
    return;
  }
  add(figures, "fio_" + name, *yardstick);
  figures["ratio_" + name] = ratio(rate.bytes_per_s(), yardstick->bytes_per_s());
  figures["cpu_ratio_" + name] = ratio(rate.cpu_s_per_byte(), yardstick->cpu_s_per_byte());
}

// What the tags of all that moves cost: a core's time as a share of the transfer's.
void measure_tag_cost(const StagingRing& ring, double seconds, json& figures) {
  const double fp32 = measure_tags(ring, kTaggedElems * 4, seconds / 2);
  figures["tag_bf16_gib_per_s"] =
      measure_tags(ring, kTaggedElems * 2, seconds / 2) / static_cast<double>(kGiB);
  figures["tag_fp32_gib_per_s"] = fp32 / static_cast<double>(kGiB);
  for (const NamedMix& mix : kMixes) {
    const std::string name = mix.name;
    figures["tag_share_" + name] =
        figures[name + "_gib_per_s"].get<double>() / (fp32 / static_cast<double>(kGiB));
  }
}

}  // namespace

json run_storage_bench(const StorageBenchOptions& options) {
  check(options);
  const OwnDirectory directory(options.directory);
  StorageLoad load;
  load.file_bytes = options.bytes / options.block_bytes * options.block_bytes;
  load.block_bytes = options.block_bytes;
  load.depth = options.depth;
  load.seconds = options.seconds;
  FioLoad fio;
  fio.file = directory.file("data");
  fio.scratch = directory.file("fio.json");
  fio.block_bytes = options.block_bytes;
  fio.depth = options.depth;
  const StagingRing ring(options.block_bytes * options.depth);
  StorageOptions engine_options;
  engine_options.queue_depth = options.depth;
  const auto engine = make_storage_engine(options.engine, engine_options);
  engine->register_memory(ring.data(), ring.bytes());
  load.file = engine->open(fio.file, StorageFileMode::kCreate, load.file_bytes);
  json figures{{"engine", engine->name()},
               {"block_bytes", options.block_bytes},
               {"depth", options.depth},
               {"ring_bytes", ring.bytes()}};
  load.file_bytes = write_first(*engine, load, ring.data(), figures);
  fio.bytes = load.file_bytes;
  figures["file_bytes"] = load.file_bytes;
  for (const NamedMix& mix : kMixes) measure_mix(*engine, load, mix, fio, ring.data(), figures);
  engine->close(load.file);
  measure_tag_cost(ring, std::min(options.seconds, 1.0), figures);
  return {{"event", "bench"}, {"name", "storage"}, {"figures", figures}};
}

}  // namespace sluice
