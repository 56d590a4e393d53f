// One table for each type of member lists its keys, and both directions follow it. A tier is one
// letter, so that a placement of hundreds of units stays short.
#include "engine/planner/choice/options_text.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace sluice::planner {
namespace {

using nlohmann::json;
using schedule::StepOptions;

constexpr std::string_view kTierLetters = "dps";  // device, pinned, storage
constexpr std::size_t kMostUnits = 1 << 16;
constexpr std::size_t kMostTextBytes = std::size_t{16} << 20;
constexpr std::uint64_t kMostNumber = std::uint64_t{1} << 56;

struct CountKey {
  const char* key;
  std::int32_t StepOptions::*member;
  std::int32_t least;
};
constexpr CountKey kCounts[] = {
    {"microbatches", &StepOptions::microbatches, 1},
    {"fold_groups", &StepOptions::fold_groups, 1},
    {"node_ranks", &StepOptions::node_ranks, 0},
    {"prefetch", &StepOptions::prefetch, 0},
    {"stream_lookahead", &StepOptions::stream_lookahead, 0},
    {"update_lookahead", &StepOptions::update_lookahead, 0},
    {"carried_units", &StepOptions::carried_units, 0},
    {"exchange_lag", &StepOptions::exchange_lag, 0},
    {"recompute_ahead", &StepOptions::recompute_ahead, 0},
    {"turns", &StepOptions::turns, 1},
};
struct SizeKey {
  const char* key;
  std::uint64_t StepOptions::*member;
  std::uint64_t least;
  std::uint64_t multiple_of;
};
constexpr SizeKey kSizes[] = {
    {"chunk_bytes", &StepOptions::chunk_bytes, 1, 1},
    {"piece_elems", &StepOptions::piece_elems, kLawBlockElems, kLawBlockElems},
    {"weight_slots", &StepOptions::weight_slots, 0, 1},
    {"update_piece_elems", &StepOptions::update_piece_elems, 0, kLawBlockElems},
    {"bucket_elems", &StepOptions::bucket_elems, 1, 1},
};
struct FlagKey {
  const char* key;
  bool StepOptions::*member;
};
constexpr FlagKey kFlags[] = {
    {"keeps_update_ring", &StepOptions::keeps_update_ring},
    {"shares_device", &StepOptions::shares_device},
    {"durable", &StepOptions::durable},
};
struct TiersKey {
  const char* key;
  std::vector<Tier> schedule::Placement::*member;
};
constexpr TiersKey kTierLists[] = {
    {"weight", &schedule::Placement::weight},
    {"gradient", &schedule::Placement::gradient},
    {"optimizer", &schedule::Placement::optimizer},
    {"activation", &schedule::Placement::activation},
    {"partial", &schedule::Placement::partial},
};
// In order of the enumerations' values.
constexpr std::array<std::string_view, 2> kOrders{"microbatch", "unit"};
constexpr std::array<std::string_view, 2> kSums{"in_order", "ring"};
constexpr std::array<std::string_view, 4> kUpdates{"after_backward", "in_backward", "next_forward",
                                                   "speculative"};
constexpr std::size_t kOtherKeys = 6;  // order, sum, update, recompute, saved, stages
constexpr std::size_t kKeys =
    std::size(kCounts) + std::size(kSizes) + std::size(kFlags) + std::size(kTierLists) + kOtherKeys;

std::string letters_of(const std::vector<Tier>& tiers) {
  std::string letters;
  for (const Tier tier : tiers) letters.push_back(kTierLetters[static_cast<std::size_t>(tier)]);
  return letters;
}

[[noreturn]] void refuse(const std::string& key, const std::string& what) {
  throw InputError("step options: \"" + key + "\" " + what);
}

const json& member(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) refuse(key, "is missing");
  return *found;
}

std::uint64_t number(const json& value, const char* key, std::uint64_t least, std::uint64_t most) {
  const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() >= least &&
                    value.get<std::uint64_t>() <= most;
  if (!fits) {
    refuse(key,
           "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value.get<std::uint64_t>();
}

std::int32_t count(const json& value, const char* key, std::int32_t least) {
  return static_cast<std::int32_t>(
      number(value, key, static_cast<std::uint64_t>(least),
             static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())));
}

std::vector<Tier> tiers(const json& value, const char* key, std::size_t most) {
  const bool right =
      value.is_string() && value.get_ref<const std::string&>().size() <= most &&
      value.get_ref<const std::string&>().find_first_not_of(kTierLetters) == std::string::npos;
  if (!right) refuse(key, "must be a string of at most " + std::to_string(most) + " of d, p and s");
  std::vector<Tier> list;
  for (const char letter : value.get_ref<const std::string&>()) {
    list.push_back(static_cast<Tier>(kTierLetters.find(letter)));
  }
  return list;
}

template <typename Enum, std::size_t kCount>
Enum word(const json& object, const char* key, const std::array<std::string_view, kCount>& words) {
  const json& value = member(object, key);
  for (std::size_t i = 0; i < kCount; ++i) {
    if (value == words[i]) return static_cast<Enum>(i);
  }
  std::string known;
  for (const std::string_view each : words)
    known += (known.empty() ? "" : ", ") + std::string(each);
  refuse(key, "must be one of " + known);
}

const json& list(const json& object, const char* key, std::size_t most) {
  const json& value = member(object, key);
  if (!value.is_array() || value.size() > most) {
    refuse(key, "must be a list of at most " + std::to_string(most) + " entries");
  }
  return value;
}

std::vector<schedule::UnitRecompute> recompute_units(const json& object) {
  constexpr const char* kKey = "recompute";
  std::vector<schedule::UnitRecompute> units;
  for (const json& entry : list(object, kKey, kMostUnits)) {
    if (!entry.is_array() || entry.size() != 3) refuse(kKey, "must hold lists of three numbers");
    schedule::UnitRecompute unit;
    unit.parts = static_cast<schedule::PartMask>(
        number(entry[0], kKey, 0, std::numeric_limits<schedule::PartMask>::max()));
    unit.output_run = count(entry[1], kKey, 0);
    unit.parts_run = count(entry[2], kKey, 1);
    units.push_back(unit);
  }
  return units;
}

// The end of each stage. Stages have at least one unit each, and cover the model.
std::vector<schedule::UnitRange> stage_ranges(const json& object, std::size_t units) {
  constexpr const char* kKey = "stages";
  std::vector<schedule::UnitRange> stages;
  std::int32_t begin = 0;
  for (const json& entry : list(object, kKey, units)) {
    stages.push_back({begin, count(entry, kKey, begin + 1)});
    begin = stages.back().end;
  }
  if (!stages.empty() && static_cast<std::size_t>(begin) != units) {
    refuse(kKey, "must end at " + std::to_string(units) + ", the number of units");
  }
  return stages;
}

// Lists by unit agree on the number of units, and numbers that divide others do.
void check_consistent(const StepOptions& options) {
  const std::size_t units = options.placement.weight.size();
  const auto check = [&](const char* key, std::size_t size, bool may_be_empty) {
    if (size == units || (may_be_empty && size == 0)) return;
    refuse(key,
           "has " + std::to_string(size) + " entries, and \"weight\" has " + std::to_string(units));
  };
  check("gradient", options.placement.gradient.size(), false);
  check("optimizer", options.placement.optimizer.size(), false);
  check("activation", options.placement.activation.size(), true);
  check("partial", options.placement.partial.size(), true);
  check("recompute", options.recompute.units.size(), true);
  if (options.placement.saved.size() > units) check("saved", options.placement.saved.size(), false);
  if (options.microbatches % options.fold_groups != 0) {
    refuse("fold_groups", "must divide \"microbatches\"");
  }
}

}  // namespace

std::string options_text(const StepOptions& options) {
  json object;
  for (const CountKey& key : kCounts) object[key.key] = options.*key.member;
  for (const SizeKey& key : kSizes) object[key.key] = options.*key.member;
  for (const FlagKey& key : kFlags) object[key.key] = options.*key.member;
  for (const TiersKey& key : kTierLists)
    object[key.key] = letters_of(options.placement.*key.member);
  object["order"] = kOrders[static_cast<std::size_t>(options.order)];
  object["sum"] = kSums[static_cast<std::size_t>(options.sum)];
  object["update"] = kUpdates[static_cast<std::size_t>(options.update)];
  json& recompute = object["recompute"] = json::array();
  for (const schedule::UnitRecompute& unit : options.recompute.units) {
    recompute.push_back({unit.parts, unit.output_run, unit.parts_run});
  }
  json& stages = object["stages"] = json::array();
  for (const schedule::UnitRange& stage : options.stages) stages.push_back(stage.end);
  json& saved = object["saved"] = json::array();
  for (const std::vector<Tier>& parts : options.placement.saved) saved.push_back(letters_of(parts));
  return object.dump();
}

StepOptions options_from_text(const std::string& text) {
  const json object = text.size() > kMostTextBytes
                          ? json()
                          : json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) throw InputError("step options: the text is not a JSON object");
  StepOptions options;
  for (const CountKey& key : kCounts) {
    options.*key.member = count(member(object, key.key), key.key, key.least);
  }
  for (const SizeKey& key : kSizes) {
    options.*key.member = number(member(object, key.key), key.key, key.least, kMostNumber);
    if (options.*key.member % key.multiple_of != 0) {
      refuse(key.key, "must be a multiple of " + std::to_string(key.multiple_of));
    }
  }
  for (const FlagKey& key : kFlags) {
    const json& value = member(object, key.key);
    if (!value.is_boolean()) refuse(key.key, "must be true or false");
    options.*key.member = value.get<bool>();
  }
  for (const TiersKey& key : kTierLists) {
    options.placement.*key.member = tiers(member(object, key.key), key.key, kMostUnits);
  }
  options.order = word<schedule::ComputeOrder>(object, "order", kOrders);
  options.sum = word<schedule::GradientSum>(object, "sum", kSums);
  options.update = word<schedule::UpdatePlacement>(object, "update", kUpdates);
  options.recompute.units = recompute_units(object);
  for (const json& parts : list(object, "saved", kMostUnits)) {
    options.placement.saved.push_back(tiers(parts, "saved", schedule::kMostParts));
  }
  options.stages = stage_ranges(object, options.placement.weight.size());
  // All keys were found, so a longer object has one that is unknown.
  if (object.size() != kKeys) throw InputError("step options: there is a key that is unknown");
  check_consistent(options);
  return options;
}

}  // namespace sluice::planner
