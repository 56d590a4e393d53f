// A profile is JSON that a user may edit or carry to another machine, so it is read as untrusted.
// Each member has a bound, an unknown or missing member is refused with its key, and a grid needs a
// positive time for every point. One table lists the members that are a single number; reading,
// writing and checking all follow it. A second table lists the figures that may be missing: those
// that nobody measures, such as capacities. A profile of another version is refused rather than guessed.
#include "engine/planner/price/hardware_profile.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/open_failure.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"

namespace sluice::planner {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "sluice-hardware-profile";
constexpr int kVersion = 3;
constexpr std::uint64_t kMaxFileBytes = kMiB;
constexpr double kMaxRate = 1e18;  // of anything per second: beyond the fastest machine there is
// Below the slowest machine there is. Bounds of a step have seconds of one rate next to seconds of
// another, which the linear program (linear_program.hpp) tells well up to some ratio.
constexpr double kLeastBytesPerS = 1e6;
constexpr double kLeastFlopsPerS = 1e6;
constexpr double kLeastParamsPerS = 1e4;  // AdamW moves some 30 bytes for each
constexpr double kMaxSeconds = 100.0;     // of one latency
constexpr std::int64_t kMaxDimension = std::int64_t{1} << 31;
constexpr std::size_t kMaxAxisPoints = 64;
constexpr std::size_t kMaxNameBytes = 256;

// The members that are one number: their key, place and bounds.
struct NumberKey {
  const char* key;
  double HardwareProfile::*member;
  double most;
  double least = 0.0;  // 0: any number above it
};
constexpr NumberKey kNumbers[] = {
    {"memory_bandwidth_bytes_per_s", &HardwareProfile::memory_bandwidth_bytes_per_s, kMaxRate,
     kLeastBytesPerS},
    {"single_core_copy_bytes_per_s", &HardwareProfile::single_core_copy_bytes_per_s, kMaxRate,
     kLeastBytesPerS},
    {"storage_read_bytes_per_s", &HardwareProfile::storage_read_bytes_per_s, kMaxRate,
     kLeastBytesPerS},
    {"storage_write_bytes_per_s", &HardwareProfile::storage_write_bytes_per_s, kMaxRate,
     kLeastBytesPerS},
    {"storage_duplex_bytes_per_s", &HardwareProfile::storage_duplex_bytes_per_s, kMaxRate,
     kLeastBytesPerS},
    {"storage_latency_s", &HardwareProfile::storage_latency_s, kMaxSeconds},
    {"storage_overlap", &HardwareProfile::storage_overlap, 1.0},
    {"gemm_f32_flops_per_s", &HardwareProfile::gemm_f32_flops_per_s, kMaxRate, kLeastFlopsPerS},
    {"gemm_bf16_flops_per_s", &HardwareProfile::gemm_bf16_flops_per_s, kMaxRate, kLeastFlopsPerS},
    {"core_scaling", &HardwareProfile::core_scaling, 1.0},
    {"adam_params_per_s", &HardwareProfile::adam_params_per_s, kMaxRate, kLeastParamsPerS},
    {"launch_overhead_s", &HardwareProfile::launch_overhead_s, kMaxSeconds},
    {"hand_over_s", &HardwareProfile::hand_over_s, kMaxSeconds},
};

// Figures that a file may leave out. One of 0 is unknown and is not written.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 60;
constexpr std::int64_t kMaxDrives = 1024;
constexpr std::size_t kMaxSources = 64;
constexpr std::size_t kMaxSourceBytes = 1024;
constexpr NumberKey kOptionalNumbers[] = {
    {"storage_tbw", &HardwareProfile::storage_tbw, kMaxRate},
    {"h2d_bytes_per_s", &HardwareProfile::h2d_bytes_per_s, kMaxRate, kLeastBytesPerS},
    {"d2h_bytes_per_s", &HardwareProfile::d2h_bytes_per_s, kMaxRate, kLeastBytesPerS},
    {"peak_bf16_flops_per_s", &HardwareProfile::peak_bf16_flops_per_s, kMaxRate, kLeastFlopsPerS},
};
struct BytesKey {
  const char* key;
  std::uint64_t HardwareProfile::*member;
};
constexpr BytesKey kOptionalBytes[] = {
    {"memory_bytes", &HardwareProfile::memory_bytes},
    {"storage_bytes", &HardwareProfile::storage_bytes},
};

// The members of "rank_links"; node_bytes_per_s and node_ranks may be 0.
struct LinkKey {
  const char* key;
  double RankLinks::*member;
  double most;
  double least = 0.0;
  bool may_be_zero = false;
};
constexpr LinkKey kLinkNumbers[] = {
    {"latency_s", &RankLinks::latency_s, kMaxSeconds},
    {"bytes_per_s", &RankLinks::bytes_per_s, kMaxRate, kLeastBytesPerS},
    {"node_bytes_per_s", &RankLinks::node_bytes_per_s, kMaxRate, kLeastBytesPerS, true},
    {"network_latency_s", &RankLinks::network_latency_s, kMaxSeconds},
    {"network_bytes_per_s", &RankLinks::network_bytes_per_s, kMaxRate, kLeastBytesPerS},
};
constexpr std::int64_t kMaxNodeRanks = 1 << 20;

// Takes members out of one JSON object, and complains with the name of the source and of the key.
class ObjectReader {
 public:
  ObjectReader(const json& object, std::string source, std::string prefix)
      : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {
    if (!object.is_object()) refuse("", "must be a JSON object");
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& reason) const {
    // The object itself has the prefix without its dot.
    std::string name = prefix_ + key;
    if (key.empty()) name = prefix_.empty() ? "it" : prefix_.substr(0, prefix_.size() - 1);
    throw InputError("hardware profile '" + source_ + "': " + name + " " + reason);
  }

  const json& get(const std::string& key) {
    known_.insert(key);
    const auto found = object_.find(key);
    if (found == object_.end()) refuse(key, "is missing; run `sluice doctor` to measure it");
    return *found;
  }
  // least 0: any number above it.
  double number(const std::string& key, double most, double least, bool may_be_zero = false) {
    const json& value = get(key);
    const double result = value.is_number() ? value.get<double>() : -1.0;
    if (result == 0.0 && may_be_zero) return result;
    // Not-a-number fails all comparisons.
    if (!(result > 0.0 && result >= least && result <= most)) {
      refuse(key, "must be a number " +
                      (least > 0.0 ? "from " + json(least).dump() + " to "
                                   : std::string("above 0, at most ")) +
                      json(most).dump());
    }
    return result;
  }
  std::int64_t integer(const std::string& key, std::int64_t most, std::uint64_t least = 1) {
    const json& value = get(key);
    const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() >= least &&
                      value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
    if (!fits) {
      refuse(key, "must be a whole number from " + std::to_string(least) + " to " +
                      std::to_string(most));
    }
    return value.get<std::int64_t>();
  }
  std::string text(const std::string& key) {
    const json& value = get(key);
    if (!value.is_string() || value.get_ref<const std::string&>().size() > kMaxNameBytes) {
      refuse(key, "must be a string of at most " + std::to_string(kMaxNameBytes) + " bytes");
    }
    return value.get<std::string>();
  }
  bool has(const std::string& key) const { return object_.contains(key); }
  std::map<std::string, std::string> texts(const std::string& key) {
    const json& value = get(key);
    std::map<std::string, std::string> texts;
    if (!value.is_object() || value.size() > kMaxSources) {
      refuse(key, "must be an object of at most " + std::to_string(kMaxSources) + " strings");
    }
    for (const auto& [name, text] : value.items()) {
      if (!text.is_string() || text.get_ref<const std::string&>().size() > kMaxSourceBytes) {
        refuse(key, "must have strings of at most " + std::to_string(kMaxSourceBytes) + " bytes");
      }
      texts.emplace(name, text.get<std::string>());
    }
    return texts;
  }
  void refuse_unknown() const {
    for (const auto& [key, value] : object_.items()) {
      if (!known_.contains(key)) refuse("'" + key + "'", "is not a key of a hardware profile");
    }
  }

 private:
  const json& object_;
  std::string source_;
  std::string prefix_;
  std::set<std::string> known_;
};

DType read_dtype(ObjectReader& reader) {
  const std::string name = reader.text("dtype");
  if (name == dtype_name(DType::kF32)) return DType::kF32;
  if (name == dtype_name(DType::kBF16)) return DType::kBF16;
  if (name == dtype_name(DType::kU8)) return DType::kU8;
  reader.refuse("dtype", "must be F32, BF16 or U8");
}

std::vector<std::int64_t> read_axis(const ObjectReader& reader, const json& list) {
  std::vector<std::int64_t> axis;
  const bool sized = list.is_array() && !list.empty() && list.size() <= kMaxAxisPoints;
  for (std::size_t i = 0; sized && i < list.size(); ++i) {
    const std::int64_t least = axis.empty() ? 1 : axis.back() + 1;
    if (!list[i].is_number_integer() || list[i] < least || list[i] > kMaxDimension) break;
    axis.push_back(list[i].get<std::int64_t>());
  }
  if (!sized || axis.size() != list.size()) {
    reader.refuse("axes", "must be three arrays of 1 to " + std::to_string(kMaxAxisPoints) +
                              " ascending whole numbers above 0");
  }
  return axis;
}

// A grid must have a known operation, a dtype that suits it, and a positive time for every point.
OperationGrid read_grid(ObjectReader& reader) {
  OperationGrid grid;
  const auto operation = timed_operation_named(reader.text("operation"));
  if (!operation) reader.refuse("operation", "is none that is timed");
  grid.operation = *operation;
  grid.dtype = read_dtype(reader);
  if ((grid.dtype == DType::kU8) != is_in_bytes(grid.operation)) {
    reader.refuse("dtype", "is none of this operation's");
  }
  const json& axes = reader.get("axes");
  if (!axes.is_array() || axes.size() != grid.axes.size()) {
    reader.refuse("axes", "must be three arrays");
  }
  for (std::size_t i = 0; i < axes.size(); ++i) grid.axes[i] = read_axis(reader, axes[i]);
  const json& seconds = reader.get("seconds");
  const bool all = seconds.is_array() && seconds.size() == grid.points();
  for (std::size_t i = 0; all && i < seconds.size(); ++i) {
    const double value = seconds[i].is_number() ? seconds[i].get<double>() : 0.0;
    if (!(value > 0.0 && value <= kMaxSeconds)) break;
    grid.seconds.push_back(value);
  }
  if (!all || grid.seconds.size() != grid.points()) {
    reader.refuse("seconds", "must be " + std::to_string(grid.points()) +
                                 " numbers above 0, one for each combination of the axes");
  }
  reader.refuse_unknown();
  return grid;
}

std::vector<OperationGrid> read_grids(ObjectReader& profile, const std::string& source) {
  const json& list = profile.get("operations");
  if (!list.is_array()) profile.refuse("operations", "must be an array of objects");
  std::vector<OperationGrid> grids;
  std::set<std::pair<TimedOperation, DType>> seen;
  for (const json& entry : list) {
    ObjectReader reader(entry, source, "operations[" + std::to_string(grids.size()) + "].");
    grids.push_back(read_grid(reader));
    if (!seen.emplace(grids.back().operation, grids.back().dtype).second) {
      reader.refuse("operation", "is there twice with this dtype");
    }
  }
  return grids;
}

RankLinks read_links(const json& object, const std::string& source) {
  ObjectReader reader(object, source, "rank_links.");
  RankLinks links;
  for (const LinkKey& number : kLinkNumbers) {
    links.*number.member = reader.number(number.key, number.most, number.least, number.may_be_zero);
  }
  links.node_ranks = static_cast<std::int32_t>(reader.integer("node_ranks", kMaxNodeRanks, 0));
  reader.refuse_unknown();
  return links;
}

json links_to_object(const RankLinks& links) {
  json object{{"node_ranks", links.node_ranks}};
  for (const LinkKey& number : kLinkNumbers) object[number.key] = links.*number.member;
  return object;
}

}  // namespace

std::string HardwareProfile::rank_links_source() const {
  if (!rank_links) return "default: loopback of a small machine, not measured";
  const auto found = sources.find("rank_links");
  return found == sources.end() ? "the hardware profile" : found->second;
}

const OperationGrid* HardwareProfile::find(TimedOperation operation, DType dtype) const {
  const auto found =
      std::find_if(operations.begin(), operations.end(), [&](const OperationGrid& grid) {
        return grid.operation == operation && grid.dtype == dtype;
      });
  return found == operations.end() ? nullptr : &*found;
}

// The default figures are those of a small GPU, so that a plan for an unmeasured one promises too
// little.
HardwareProfile HardwareProfile::gpu_or_default() const {
  if (gpu) return *gpu;
  HardwareProfile small;
  small.backend = "cuda";
  small.cores = 1;
  small.memory_bandwidth_bytes_per_s = 4e11;
  small.single_core_copy_bytes_per_s = 1e10;  // PCI Express of the third generation, 16 lanes
  small.gemm_f32_flops_per_s = 1e13;
  small.gemm_bf16_flops_per_s = 5e13;
  small.adam_params_per_s = small.memory_bandwidth_bytes_per_s / 28;  // bytes of an update
  small.launch_overhead_s = 5e-6;
  small.hand_over_s = 1e-5;
  return small;
}

namespace {

json to_object(const HardwareProfile& profile) {
  json object{{"format", kFormat},
              {"version", kVersion},
              {"backend", profile.backend},
              {"cpu_name", profile.cpu_name},
              {"cores", profile.cores}};
  for (const NumberKey& number : kNumbers) object[number.key] = profile.*number.member;
  for (const NumberKey& number : kOptionalNumbers) {
    if (profile.*number.member > 0) object[number.key] = profile.*number.member;
  }
  for (const BytesKey& bytes : kOptionalBytes) {
    if (profile.*bytes.member > 0) object[bytes.key] = profile.*bytes.member;
  }
  if (profile.storage_drives > 0) object["storage_drives"] = profile.storage_drives;
  if (profile.rank_links) object["rank_links"] = links_to_object(*profile.rank_links);
  if (!profile.sources.empty()) object["sources"] = profile.sources;
  object["operations"] = json::array();
  for (const OperationGrid& grid : profile.operations) {
    object["operations"].push_back({{"operation", timed_operation_name(grid.operation)},
                                    {"dtype", dtype_name(grid.dtype)},
                                    {"axes", grid.axes},
                                    {"seconds", grid.seconds}});
  }
  if (profile.gpu) object["gpu"] = to_object(*profile.gpu);
  return object;
}

HardwareProfile from_object(const json& object, const std::string& source,
                            const std::string& prefix) {
  ObjectReader reader(object, source, prefix);
  if (reader.text("format") != kFormat)
    reader.refuse("format", "must be \"" + std::string(kFormat) + "\"");
  if (reader.integer("version", 1'000'000) != kVersion) {
    reader.refuse("version", "must be " + std::to_string(kVersion) +
                                 "; run `sluice doctor` to measure this machine anew");
  }
  HardwareProfile profile;
  profile.backend = reader.text("backend");
  if (profile.backend != "host" && profile.backend != "cuda") {
    reader.refuse("backend", "must be \"host\" or \"cuda\"");
  }
  profile.cpu_name = reader.text("cpu_name");
  profile.cores = static_cast<std::int32_t>(reader.integer("cores", 1'000'000));
  for (const NumberKey& number : kNumbers) {
    profile.*number.member = reader.number(number.key, number.most, number.least);
  }
  for (const NumberKey& number : kOptionalNumbers) {
    if (!reader.has(number.key)) continue;
    profile.*number.member = reader.number(number.key, number.most, number.least);
  }
  for (const BytesKey& bytes : kOptionalBytes) {
    if (!reader.has(bytes.key)) continue;
    profile.*bytes.member =
        static_cast<std::uint64_t>(reader.integer(bytes.key, static_cast<std::int64_t>(kMaxBytes)));
  }
  if (reader.has("storage_drives")) {
    profile.storage_drives = reader.integer("storage_drives", kMaxDrives);
  }
  if (reader.has("sources")) profile.sources = reader.texts("sources");
  profile.operations = read_grids(reader, source);
  // Only of a machine, whose GPU has neither ranks nor a GPU of its own.
  if (prefix.empty() && object.contains("rank_links")) {
    profile.rank_links = read_links(reader.get("rank_links"), source);
  }
  if (prefix.empty() && object.contains("gpu")) {
    profile.gpu =
        std::make_shared<const HardwareProfile>(from_object(reader.get("gpu"), source, "gpu."));
    if (profile.gpu->backend != "cuda") reader.refuse("gpu.backend", "must be \"cuda\"");
  }
  reader.refuse_unknown();
  return profile;
}

}  // namespace

std::string to_json(const HardwareProfile& profile) {
  // A processor's name that is not UTF-8 must not stop a measurement from being saved.
  return to_object(profile).dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

HardwareProfile profile_from_json(const std::string& text, const std::string& source) {
  const json object = json::parse(text, nullptr, false);
  if (object.is_discarded()) {
    throw InputError("hardware profile '" + source +
                     "' is not JSON; run `sluice doctor` to write it anew");
  }
  return from_object(object, source, "");
}

HardwareProfile load_profile(const std::string& path) {
  std::string text(kMaxFileBytes + 1, '\0');
  try {
    const PosixFile file = PosixFile::open_read(path);
    text.resize(file.read_some(0, std::as_writable_bytes(std::span(text))));
  } catch (const IoError& error) {
    throw InputError("hardware profile '" + path + "' cannot be read (" + open_failure(error) +
                     "); run `sluice doctor` to measure one");
  }
  if (text.size() > kMaxFileBytes) {
    throw InputError("hardware profile '" + path + "' is longer than 1 MiB, so it is none");
  }
  return profile_from_json(text, path);
}

void save_profile(const HardwareProfile& profile, const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path target(path);
  std::error_code status;
  if (target.has_parent_path()) fs::create_directories(target.parent_path(), status);
  if (status) throw IoError("mkdir", target.parent_path().string(), 0, 0, status.value());
  check_replaceable(path);
  const std::string text = to_json(profile);
  const std::string fresh = path + "." + std::to_string(::getpid());
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  if (!file) throw IoError("open", fresh, 0, 0, errno);
  file << text;
  file.close();
  if (!file) {
    fs::remove(fresh, status);
    throw IoError("write", fresh, 0, text.size(), EIO);
  }
  fs::rename(fresh, target, status);
  if (status) throw IoError("rename", path, 0, 0, status.value());
}

std::string default_profile_path() {
  const auto absolute = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value != nullptr && value[0] == '/' ? value : "";
  };
  const std::string cache = absolute("XDG_CACHE_HOME");
  if (!cache.empty()) return cache + "/sluice/hardware.json";
  const std::string home = absolute("HOME");
  return home.empty() ? "" : home + "/.cache/sluice/hardware.json";
}

HardwareProfile load_profile_or_default(const std::string& path) {
  std::error_code unreadable;
  if (path.empty() || !std::filesystem::exists(path, unreadable)) return HardwareProfile{};
  try {
    return load_profile(path);
  } catch (const InputError& error) {
    log(LogLevel::kWarning,
        std::string(error.what()) + "; the times of a default machine are used instead");
    return HardwareProfile{};
  }
}

}  // namespace sluice::planner
