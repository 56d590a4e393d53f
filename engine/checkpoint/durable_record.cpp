#include "engine/checkpoint/durable_record.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/directory.hpp"
#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/open_beneath.hpp"
#include "base/units.hpp"
#include "kernels/optimizer_options.hpp"
#include "offload/striped_space.hpp"

namespace sluice::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kLogPrefix = "state-";
constexpr std::string_view kLogSuffix = ".log";

std::string hex(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  const std::string text(digits.data(), end);
  return std::string(16 - text.size(), '0') + text;
}

std::optional<std::uint64_t> from_hex(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw InputError(name + ": " + what);
}

std::uint64_t number(const Json& object, const char* key, const std::string& name) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_unsigned() ||
      at->get<std::uint64_t>() >= std::uint64_t{1} << 62) {
    refuse(name, "'" + std::string(key) + "' must be a whole number below 2^62");
  }
  return at->get<std::uint64_t>();
}

const std::string& word(const Json& object, const char* key, const std::string& name) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_string()) {
    refuse(name, "'" + std::string(key) + "' must be a string");
  }
  return at->get_ref<const std::string&>();
}

// The enumerator among the first `count` that is called `text`.
template <typename E, typename Name>
std::optional<E> find_name(std::string_view text, std::size_t count, Name name_of) {
  for (std::size_t i = 0; i < count; ++i) {
    if (name_of(static_cast<E>(i)) == text) return static_cast<E>(i);
  }
  return std::nullopt;
}

runtime::SavedHome parse_home(const Json& object, const std::string& name,
                              std::uint64_t space_bytes) {
  if (!object.is_object()) refuse(name, "an entry of 'homes' must be an object");
  runtime::SavedHome home;
  const auto kind = find_name<StateKind>(word(object, "kind", name), kStateKindCount,
                                         [](StateKind k) { return state_kind_name(k); });
  const auto dtype =
      find_name<DType>(word(object, "dtype", name), static_cast<std::size_t>(DType::kBlock8) + 1,
                       [](DType d) { return dtype_name(d); });
  if (!kind || !dtype) {
    refuse(name, "an entry of 'homes' is of a kind or dtype that this program does not know");
  }
  home.kind = *kind;
  home.dtype = *dtype;
  home.unit =
      static_cast<std::int32_t>(std::min<std::uint64_t>(number(object, "unit", name), 1u << 30));
  if (object.contains("first_elem")) home.first_elem = number(object, "first_elem", name);
  home.offset = number(object, "offset", name);
  home.bytes = number(object, "bytes", name);
  home.key = number(object, "key", name);
  home.block_bytes = number(object, "block_bytes", name);
  const std::uint64_t version = number(object, "version", name);
  if (version >> 32 != 0) refuse(name, "'version' must be below 2^32");
  home.version = static_cast<std::uint32_t>(version);
  if (home.bytes == 0 || home.offset > space_bytes || home.bytes > space_bytes - home.offset) {
    refuse(name, "an entry of 'homes' lies outside the files");
  }
  if (home.block_bytes != bytes_of(home.dtype, kLawBlockElems)) {
    refuse(name, "'block_bytes' must be those of " + std::to_string(kLawBlockElems) + " elements");
  }
  if (home.first_elem % kLawBlockElems != 0) {
    refuse(name, "'first_elem' must be a multiple of " + std::to_string(kLawBlockElems));
  }
  const std::string& digest = word(object, "xxh3", name);
  const auto high = from_hex(std::string_view(digest).substr(0, 16));
  const auto low = from_hex(digest.size() == 32 ? std::string_view(digest).substr(16) : "x");
  if (!high || !low) refuse(name, "'xxh3' must be 32 hex digits");
  home.digest = {*low, *high};
  return home;
}

// A list of the tensor's name and six numbers, since a model has many slices.
nlohmann::ordered_json format_slice(const SavedSlice& saved) {
  const model::TensorSlice& slice = saved.slice;
  return nlohmann::ordered_json::array(
      {saved.unit, saved.tensor, saved.first_elem, slice.row, slice.rows, slice.col, slice.cols});
}

SavedSlice parse_slice(const Json& list, const std::string& name) {
  const auto is_number = [](const Json& member) {
    return member.is_number_unsigned() && member.get<std::uint64_t>() < std::uint64_t{1} << 31;
  };
  const bool whole = list.is_array() && list.size() == 7 && list[1].is_string() &&
                     list[2].is_number_unsigned() && is_number(list[0]) &&
                     std::all_of(list.begin() + 3, list.end(), is_number);
  if (!whole) {
    refuse(
        name,
        "an entry of 'boxes' must be a list of a unit, a tensor's name, its first element, a row, "
        "rows, a column and columns");
  }
  return {list[0].get<std::int32_t>(),
          list[1].get<std::string>(),
          list[2].get<std::uint64_t>(),
          {list[3].get<std::int64_t>(), list[4].get<std::int64_t>(), list[5].get<std::int64_t>(),
           list[6].get<std::int64_t>()}};
}

// Returns equal shares if the record has none: older versions of Sluice knew no others.
std::vector<std::uint32_t> parse_shares(const Json& space, const std::string& name,
                                        std::size_t files) {
  std::vector<std::uint32_t> shares;
  const auto at = space.find("shares");
  if (at == space.end()) return std::vector<std::uint32_t>(files, 1);
  for (const Json& share : *at) {
    const bool whole = share.is_number_unsigned() &&
                       share.get<std::uint64_t>() <= offload::StripeLayout::kMostStripes;
    shares.push_back(whole ? share.get<std::uint32_t>() : 0);
  }
  if (!at->is_array() || shares.size() != files || !offload::StripeLayout::valid(shares)) {
    refuse(name, "'shares' must be a list of whole numbers above 0, one for each of 'files', " +
                     std::to_string(offload::StripeLayout::kMostStripes) + " in all at most");
  }
  return shares;
}

// The block at which the sums of tensors may break (ParameterTable). Records of versions that
// placed them otherwise have no such member.
constexpr const char* kSumsBlockKey = "sums_block";

// Whether the run's rule keeps sums of whole tensors.
bool keeps_sums(const CheckpointManifest& manifest) {
  const auto name = manifest.settings.find("optimizer.name");
  for (std::size_t i = 0; name != manifest.settings.end() && i < kernels::kOptimizerRuleCount;
       ++i) {
    kernels::OptimizerOptions options;
    options.rule = static_cast<kernels::OptimizerRule>(i);
    if (name->second == "\"" + std::string(kernels::optimizer_rule_name(options.rule)) + "\"") {
      return kernels::needs_whole_tensors(options);
    }
  }
  return false;
}

}  // namespace

std::vector<SavedSlice> slices_of(const model::ParameterSpace& space,
                                  const std::set<std::int32_t>& units) {
  std::vector<SavedSlice> slices;
  for (const std::int32_t unit : units) {
    if (unit < 0 || static_cast<std::size_t>(unit) >= space.unit_count()) continue;
    for (const model::PlacedTensor& tensor :
         space.layout(static_cast<std::size_t>(unit)).tensors()) {
      std::uint64_t first = tensor.first_elem;
      for (const model::TensorSlice& slice : tensor.spec.slices) {
        slices.push_back({unit, tensor.spec.name, first, slice});
        first += static_cast<std::uint64_t>(slice.rows * slice.cols);
      }
    }
  }
  return slices;
}

std::set<std::int32_t> units_of(const std::vector<runtime::SavedHome>& homes) {
  std::set<std::int32_t> units;
  for (const runtime::SavedHome& home : homes) units.insert(home.unit);
  return units;
}

void check_record_is_own(const SavedState& state, const std::string& log) {
  if (state.run.hex() == run_of_log(log)) return;
  throw InputError(log + " holds a record of run " + state.run.hex() + ", not of its own");
}

std::string state_log_path(const std::string& directory, const std::string& run_id) {
  return directory + "/" + std::string(kLogPrefix) + run_id + std::string(kLogSuffix);
}

std::string run_of_log(const std::string& log) {
  const std::string name = fs::path(log).filename().string();
  if (!name.starts_with(kLogPrefix) || !name.ends_with(kLogSuffix)) return {};
  if (name.size() <= kLogPrefix.size() + kLogSuffix.size()) return {};
  const std::string run =
      name.substr(kLogPrefix.size(), name.size() - kLogPrefix.size() - kLogSuffix.size());
  return parse_run_id(run) ? run : std::string();
}

std::vector<std::string> logs_in(const std::string& directory) {
  std::vector<std::string> logs;
  for (const fs::path& path : list_directory(directory)) {
    if (!run_of_log(path.string()).empty()) logs.push_back(path.string());
  }
  return logs;
}

std::string format_state_record(const CheckpointManifest& manifest, const SavedState& state) {
  nlohmann::ordered_json document = parse_ordered_json(format_manifest(manifest));
  document["space"] = {{"run", state.run.hex()}, {"log", state.log},
                       {"log_id", state.log_id}, {"bytes", state.space_bytes},
                       {"files", state.files},   {"shares", state.shares}};
  if (state.ranks > 1) document["space"]["ranks"] = state.ranks;
  if (keeps_sums(manifest)) document["space"][kSumsBlockKey] = kLawBlockElems;
  document["homes"] = nlohmann::ordered_json::array();
  for (const runtime::SavedHome& home : state.homes) {
    document["homes"].push_back({{"kind", state_kind_name(home.kind)},
                                 {"unit", static_cast<std::uint64_t>(home.unit)},
                                 {"dtype", dtype_name(home.dtype)},
                                 {"offset", home.offset},
                                 {"bytes", home.bytes},
                                 {"key", home.key},
                                 {"block_bytes", home.block_bytes},
                                 {"version", home.version},
                                 {"xxh3", hex(home.digest.high) + hex(home.digest.low)}});
    // A shard of a rank.
    if (home.first_elem > 0) document["homes"].back()["first_elem"] = home.first_elem;
  }
  for (const SavedSlice& slice : state.slices) document["boxes"].push_back(format_slice(slice));
  return json_text(document);
}

void parse_state_record(std::string_view text, const std::string& name,
                        CheckpointManifest& manifest, SavedState& state) {
  manifest = parse_manifest(text, name);
  const Json document = parse_json(text);
  const auto space = document.find("space");
  const auto homes = document.find("homes");
  if (space == document.end() || !space->is_object() || homes == document.end() ||
      !homes->is_array()) {
    refuse(name, "'space' must be an object and 'homes' a list");
  }
  state = {};
  const auto run = parse_run_id(word(*space, "run", name));
  if (!run) refuse(name, "'run' must be 32 hex digits");
  state.run = *run;
  state.log = word(*space, "log", name);
  if (space->contains("log_id")) state.log_id = word(*space, "log_id", name);
  state.space_bytes = number(*space, "bytes", name);
  if (keeps_sums(manifest) &&
      (!space->contains(kSumsBlockKey) || number(*space, kSumsBlockKey, name) != kLawBlockElems)) {
    refuse(name,
           "was written by a version that placed the optimizer's sums of whole tensors "
           "otherwise; go on from a checkpoint of files, or start a new run");
  }
  if (space->contains("ranks")) {
    state.ranks = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(number(*space, "ranks", name), std::uint64_t{1} << 31));
  }
  const auto files = space->find("files");
  // A rank without a shard has no state, and no file of it.
  const bool has_state = !homes->empty();
  if (files == space->end() || !files->is_array() || files->empty() == has_state) {
    refuse(name, "'files' must be a list of names");
  }
  for (const Json& file : *files) {
    if (!file.is_string()) refuse(name, "'files' must be a list of names");
    const std::string path = file.get<std::string>();
    // No file with another name is opened, or removed, because a record says so.
    const std::string own = "sluice-" + run->hex() + "-" + std::to_string(state.files.size());
    if (name_of(path) != own + offload::StripedSpace::kKeptSuffix) {
      refuse(name, "'files' must name the run's own files, '" + own +
                       offload::StripedSpace::kKeptSuffix + "' and so on");
    }
    state.files.push_back(path);
  }
  if (has_state) state.shares = parse_shares(*space, name, state.files.size());
  for (const Json& home : *homes) state.homes.push_back(parse_home(home, name, state.space_bytes));
  const auto slices = document.find("boxes");
  if (slices == document.end()) return;
  if (!slices->is_array()) refuse(name, "'boxes' must be a list");
  for (const Json& slice : *slices) state.slices.push_back(parse_slice(slice, name));
}

std::vector<fs::path> data_of_run(const std::string& run_id,
                                  const std::vector<std::string>& directories) {
  const std::string begin = "sluice-" + run_id + "-";
  std::vector<fs::path> data;
  for (const std::string& directory : directories) {
    for (const fs::path& path : list_directory(directory)) {
      const std::string name = path.filename().string();
      if (name.starts_with(begin) && name.ends_with(offload::StripedSpace::kKeptSuffix)) {
        data.push_back(path);
      }
    }
  }
  return data;
}

}  // namespace sluice::checkpoint
