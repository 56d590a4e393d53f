// Items are sorted once, by unit and by size within it. A choice of n items is then just the first
// n, and adding an item never moves another one back.
#include "engine/planner/choice/spill_choice.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "engine/planner/choice/recompute_choice.hpp"

namespace sluice::planner {
namespace {

using Place = config::Config::Place;

// "auto" names no tier; the other places count tiers in the same order.
std::optional<Tier> tier_of(Place place) {
  if (place == Place::kAuto) return std::nullopt;
  return static_cast<Tier>(static_cast<int>(place) - static_cast<int>(Place::kDevice));
}

// The tier that the configuration gives for one part; nothing if it leaves the choice.
std::optional<Tier> fixed_place(const config::Config& config, const std::string& part) {
  const std::map<std::string, Place>& saved = config.memory.place.saved;
  auto found = saved.find(part);
  if (found == saved.end()) found = saved.find("*");
  const bool named = found != saved.end() && found->second != Place::kAuto;
  return tier_of(named ? found->second : config.memory.place.activation);
}

// The distinct names of saved parts: the head's if of_head, else those of all other units.
std::vector<std::string> part_names(const schedule::StepModel& model, bool of_head) {
  std::vector<std::string> names;
  for (const schedule::UnitFootprint& unit : model.units) {
    if (unit.is_head != of_head) continue;
    for (const schedule::SavedPart& part : unit.saved_parts) {
      if (std::find(names.begin(), names.end(), part.name) == names.end()) {
        names.push_back(part.name);
      }
    }
  }
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The names of parts that a fixed recompute.policy recomputes: they wait nowhere.
std::vector<std::string> remade_names(const config::Config& config,
                                      const schedule::StepModel& model) {
  const std::vector<schedule::Recomputation> choices = recompute_choices(config, model);
  if (choices.size() != 1) return {};
  std::vector<std::string> names;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const std::vector<schedule::SavedPart>& parts = model.units[unit].saved_parts;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      if (choices.front().remakes(static_cast<std::int32_t>(unit), part)) {
        names.push_back(parts[part].name);
      }
    }
  }
  return names;
}

// A name that nothing saves would be a setting without effect, so it is refused.
void check_names(const config::Config& config, const schedule::StepModel& model) {
  const std::vector<std::string> known = part_names(model, false);
  const std::vector<std::string> of_head = part_names(model, true);
  const std::vector<std::string> remade = remade_names(config, model);
  for (const auto& [name, place] : config.memory.place.saved) {
    if (place != Place::kAuto && contains(remade, name)) {
      throw InputError("memory.place.saved." + shown(name) +
                       " has no meaning with this recompute.policy, which makes the part again in "
                       "each unit; leave one of the two out");
    }
    if (name == "*" || contains(known, name)) continue;
    std::string list = "\"*\"";
    for (const std::string& part : known) list += ", \"" + part + "\"";
    if (!contains(of_head, name)) {
      throw InputError("memory.place.saved." + shown(name) +
                       ": nothing that is saved has this name; known are " + list);
    }
    if (place == Place::kAuto) continue;
    throw InputError("memory.place.saved." + shown(name) +
                     ": the head's passes follow each other, so nothing of it waits anywhere; "
                     "leave it out, or name one of " +
                     list);
  }
}

}  // namespace

// A part named in memory.place.saved, or "*" there, overrides the place of all activations.
std::vector<std::vector<Tier>> saved_places(const config::Config& config,
                                            const schedule::StepModel& model,
                                            const std::vector<Tier>& activation) {
  check_names(config, model);
  std::vector<std::vector<Tier>> places;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    places.emplace_back();
    for (const schedule::SavedPart& part : model.units[unit].saved_parts) {
      places.back().push_back(fixed_place(config, part.name).value_or(activation[unit]));
    }
  }
  return places;
}

// Parts that are recomputed do not wait between the passes, so they are no items. Parts with a
// place of their own in the configuration stay there.
SpillChoice::SpillChoice(const config::Config& config, const schedule::StepModel& model,
                         schedule::StepOptions options, Tier tier)
    : options_(std::move(options)), tier_(tier) {
  schedule::Placement& placement = options_.placement;
  placement.activation.assign(model.units.size(), Tier::kDevice);
  placement.saved = saved_places(config, model, placement.activation);
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const schedule::UnitFootprint& footprint = model.units[unit];
    // The head's passes follow each other, so none of its values waits.
    if (footprint.is_head) continue;
    if (footprint.output_bytes > 0) items_.push_back({unit, kOutput, footprint.output_bytes});
    for (std::size_t part = 0; part < footprint.saved_parts.size(); ++part) {
      if (options_.recompute.remakes(static_cast<std::int32_t>(unit), part)) continue;
      const schedule::SavedPart& saved = footprint.saved_parts[part];
      if (!fixed_place(config, saved.name)) items_.push_back({unit, part, saved.bytes});
    }
  }
  std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
    if (a.unit != b.unit) return a.unit < b.unit;
    return a.bytes > b.bytes;
  });
}

schedule::StepOptions SpillChoice::with(std::size_t count) const {
  schedule::StepOptions options = options_;
  for (std::size_t i = 0; i < count; ++i) {
    const Item& item = items_[i];
    schedule::Placement& placement = options.placement;
    (item.part == kOutput ? placement.activation[item.unit]
                          : placement.saved[item.unit][item.part]) = tier_;
  }
  return options;
}

schedule::StepOptions SpillChoice::with_share(double share) const {
  double total = 0;
  for (const Item& item : items_) total += static_cast<double>(item.bytes);
  double taken = 0;
  std::size_t count = 0;
  while (count < items_.size() && taken < share * total) {
    taken += static_cast<double>(items_[count++].bytes);
  }
  return with(count);
}

// All saved bytes start in the device's column. Each spill in the schedule then moves its bytes to
// the column of its part's tier, so bytes that the stream kept on the device stay there.
SavedBytes saved_bytes_by_part(const schedule::StepModel& model,
                               const schedule::StepOptions& options,
                               const schedule::Schedule& training) {
  // By unit, the micro-batches that this rank runs through it: none through those of other stages.
  std::vector<std::set<std::int32_t>> microbatches(model.units.size());
  for (const schedule::Instruction& instruction : training.instructions) {
    const bool is_forward = instruction.op == schedule::Op::kForward;
    if (!is_forward && instruction.op != schedule::Op::kLoss) continue;
    microbatches[static_cast<std::size_t>(instruction.unit)].insert(instruction.microbatch);
  }
  SavedBytes by_part;
  const auto entry = [&](const std::string& name) -> std::array<std::uint64_t, kTierCount>& {
    for (auto& [known, bytes] : by_part) {
      if (known == name) return bytes;
    }
    by_part.push_back({name, {}});
    return by_part.back().second;
  };
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const std::vector<schedule::SavedPart>& parts = model.units[unit].saved_parts;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      if (options.recompute.remakes(static_cast<std::int32_t>(unit), part)) continue;
      if (microbatches[unit].empty()) continue;
      entry(parts[part].name)[0] += parts[part].bytes * microbatches[unit].size();
    }
  }
  for (const schedule::Instruction& instruction : training.instructions) {
    if (instruction.op != schedule::Op::kSpillActivation) continue;
    const schedule::Use& use = instruction.reads.front();
    const schedule::Buffer& from = training.buffers[use.buffer];
    if (from.role != schedule::BufferRole::kSaved) continue;
    const std::uint64_t begin = from.first_elem + use.offset_bytes;
    const std::uint64_t end = begin + instruction.bytes;
    const auto unit = static_cast<std::size_t>(from.unit);
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < model.units[unit].saved_parts.size(); ++i) {
      const schedule::SavedPart& part = model.units[unit].saved_parts[i];
      const std::uint64_t first = std::max(begin, at);
      at += part.bytes;
      if (first >= std::min(end, at)) continue;
      auto& bytes = entry(part.name);
      const std::uint64_t moved = std::min(end, at) - first;
      bytes[static_cast<std::size_t>(options.placement.saved_of(from.unit, i))] += moved;
      bytes[0] -= moved;
    }
  }
  return by_part;
}

}  // namespace sluice::planner
