// Each type of member has a function to JSON and one from it; the fields come from step_fields.hpp.
// A tier is one letter, so that a placement of hundreds of units stays short.
#include "engine/planner/choice/options_text.hpp"

#include <algorithm>
#include <array>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "engine/schedule/compile/step_fields.hpp"

namespace sluice::planner {
namespace {

using nlohmann::json;
using schedule::StepField;
using schedule::StepOptions;

constexpr std::string_view kTierLetters = "dps";  // device, pinned, storage
constexpr std::size_t kMostUnits = 1 << 16;
constexpr std::size_t kMostTextBytes = std::size_t{16} << 20;
constexpr std::uint64_t kMostNumber = std::uint64_t{1} << 56;

// In order of the enumerations' values.
constexpr std::array<std::string_view, 2> words_of(schedule::ComputeOrder) {
  return {"microbatch", "unit"};
}
constexpr std::array<std::string_view, 2> words_of(schedule::GradientSum) {
  return {"in_order", "ring"};
}
constexpr std::array<std::string_view, 4> words_of(schedule::UpdatePlacement) {
  return {"after_backward", "in_backward", "next_forward", "speculative"};
}

json json_of(const std::vector<Tier>& tiers) {
  std::string letters;
  for (const Tier tier : tiers) letters.push_back(kTierLetters[static_cast<std::size_t>(tier)]);
  return letters;
}

json json_of(const schedule::UnitRecompute& unit) {
  return {unit.parts, unit.output_run, unit.parts_run};
}

json json_of(const schedule::UnitRange& stage) {
  return stage.end;
}

template <typename Value>
json json_of(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return words_of(value)[static_cast<std::size_t>(value)];
  } else {
    return value;
  }
}

template <typename Each>
json json_of(const std::vector<Each>& list) {
  json entries = json::array();
  for (const Each& each : list) entries.push_back(json_of(each));
  return entries;
}

[[noreturn]] void refuse(const std::string& key, const std::string& what) {
  throw InputError("step options: \"" + key + "\" " + what);
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

const json& list(const json& value, const char* key, std::size_t most) {
  if (!value.is_array() || value.size() > most) {
    refuse(key, "must be a list of at most " + std::to_string(most) + " entries");
  }
  return value;
}

void read(const json& value, const StepField& field, bool& flag) {
  if (!value.is_boolean()) refuse(field.name, "must be true or false");
  flag = value.get<bool>();
}

template <std::integral Number>
void read(const json& value, const StepField& field, Number& into) {
  constexpr std::uint64_t kMost =
      std::min<std::uint64_t>(std::numeric_limits<Number>::max(), kMostNumber);
  const std::uint64_t read = number(value, field.name, field.least, kMost);
  if (read % field.multiple_of != 0) {
    refuse(field.name, "must be a multiple of " + std::to_string(field.multiple_of));
  }
  into = static_cast<Number>(read);
}

template <typename Enum>
requires std::is_enum_v<Enum>
void read(const json& value, const StepField& field, Enum& into) {
  constexpr auto kWords = words_of(Enum{});
  const auto* const found = std::find(kWords.begin(), kWords.end(), value);
  std::string known;
  for (const std::string_view each : kWords) {
    known += (known.empty() ? "" : ", ") + std::string(each);
  }
  if (found == kWords.end()) refuse(field.name, "must be one of " + known);
  into = static_cast<Enum>(found - kWords.begin());
}

void read(const json& value, const StepField& field, std::vector<Tier>& tiers,
          std::size_t most = kMostUnits) {
  const bool right =
      value.is_string() && value.get_ref<const std::string&>().size() <= most &&
      value.get_ref<const std::string&>().find_first_not_of(kTierLetters) == std::string::npos;
  if (!right) {
    refuse(field.name, "must be a string of at most " + std::to_string(most) + " of d, p and s");
  }
  for (const char letter : value.get_ref<const std::string&>()) {
    tiers.push_back(static_cast<Tier>(kTierLetters.find(letter)));
  }
}

void read(const json& value, const StepField& field, std::vector<std::vector<Tier>>& units) {
  for (const json& parts : list(value, field.name, kMostUnits)) {
    read(parts, field, units.emplace_back(), schedule::kMostParts);
  }
}

void read(const json& value, const StepField& field, std::vector<schedule::UnitRecompute>& units) {
  for (const json& entry : list(value, field.name, kMostUnits)) {
    if (!entry.is_array() || entry.size() != 3)
      refuse(field.name, "must hold lists of three numbers");
    schedule::UnitRecompute& unit = units.emplace_back();
    unit.parts = static_cast<schedule::PartMask>(
        number(entry[0], field.name, 0, std::numeric_limits<schedule::PartMask>::max()));
    read(entry[1], {field.name}, unit.output_run);
    read(entry[2], {field.name, 1}, unit.parts_run);
  }
}

// The text has the end of each stage. Stages have at least one unit each.
void read(const json& value, const StepField& field, std::vector<schedule::UnitRange>& stages) {
  std::int32_t begin = 0;
  for (const json& entry : list(value, field.name, kMostUnits)) {
    schedule::UnitRange& stage = stages.emplace_back();
    stage.begin = begin;
    read(entry, {field.name, static_cast<std::uint64_t>(begin) + 1}, stage.end);
    begin = stage.end;
  }
}

// Lists by unit agree on the number of units, stages cover it, and numbers that divide others do.
void check_consistent(const StepOptions& options) {
  const std::size_t units = options.placement.weight.size();
  schedule::for_each_misfit(options, units, [&](const StepField& field, std::size_t entries) {
    refuse(field.name, "has " + std::to_string(entries) + " entries, and \"weight\" has " +
                           std::to_string(units));
  });
  if (!options.stages.empty() && static_cast<std::size_t>(options.stages.back().end) != units) {
    refuse("stages", "must end at " + std::to_string(units) + ", the number of units");
  }
  if (options.microbatches % options.fold_groups != 0) {
    refuse("fold_groups", "must divide \"microbatches\"");
  }
}

}  // namespace

std::string options_text(const StepOptions& options) {
  json object;
  schedule::for_each_field(options, [&](const StepField& field, const auto& value) {
    object[field.name] = json_of(value);
  });
  return object.dump();
}

StepOptions options_from_text(const std::string& text) {
  const json object = text.size() > kMostTextBytes
                          ? json()
                          : json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) throw InputError("step options: the text is not a JSON object");
  StepOptions options;
  std::size_t keys = 0;
  schedule::for_each_field(options, [&](const StepField& field, auto& value) {
    const auto found = object.find(field.name);
    if (found == object.end()) refuse(field.name, "is missing");
    read(*found, field, value);
    ++keys;
  });
  // All keys were found, so a longer object has one that is unknown.
  if (object.size() != keys) throw InputError("step options: there is a key that is unknown");
  check_consistent(options);
  return options;
}

}  // namespace sluice::planner
