// The words for memory that every room shares: tier, category, state kind (docs/GLOSSARY.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// The memory tiers, fastest first.
enum class Tier : std::uint8_t { kDevice, kPinned, kStorage };
inline constexpr std::size_t kTierCount = 3;
inline constexpr std::array<Tier, kTierCount> kTiers{Tier::kDevice, Tier::kPinned, Tier::kStorage};

// The purpose of bytes; the ledger keeps a total per (tier, category).
enum class Category : std::uint8_t {
  kWeight,
  kGradient,
  kOptimizer,
  kActivation,
  kWorkspace,
  kCommunication,
  kExternal,
};
inline constexpr std::size_t kCategoryCount = 7;

// The kinds of model state that a chunk may hold. kNone: a buffer that is not model state.
enum class StateKind : std::uint8_t { kWeight, kGradient, kMaster, kMoment1, kMoment2, kNone };
inline constexpr std::size_t kStateKindCount = 5;
// The kinds that an optimizer keeps.
inline constexpr std::array<StateKind, 3> kOptimizerKinds{StateKind::kMaster, StateKind::kMoment1,
                                                          StateKind::kMoment2};

constexpr std::string_view tier_name(Tier tier) {
  constexpr std::array<std::string_view, kTierCount> names{"device", "pinned", "storage"};
  return names[static_cast<std::size_t>(tier)];
}
constexpr std::string_view category_name(Category category) {
  constexpr std::array<std::string_view, kCategoryCount> names{
      "weight", "gradient", "optimizer", "activation", "workspace", "communication", "external"};
  return names[static_cast<std::size_t>(category)];
}
constexpr std::string_view state_kind_name(StateKind kind) {
  constexpr std::array<std::string_view, 6> names{"weight",  "gradient", "master",
                                                  "moment1", "moment2",  "none"};
  return names[static_cast<std::size_t>(kind)];
}

}  // namespace sluice
