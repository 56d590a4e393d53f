// The named parts of the values that a forward pass saves for backward.
//
// Parts lie one after another in the unit's saved region, each at a multiple of 256 bytes. Backward
// has two halves, and most parts serve only one of them. So each part may wait in a tier of its
// own, come back when its half begins, and be released when its half ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::schedule {

// The halves of backward that read a part.
enum class SavedFor : std::uint8_t { kBoth, kBackwardInput, kBackwardWeight };
inline constexpr std::size_t kSavedForCount = 3;
constexpr std::string_view saved_for_name(SavedFor used_by) {
  constexpr std::array<std::string_view, kSavedForCount> names{"both", "backward_input",
                                                               "backward_weight"};
  return names[static_cast<std::size_t>(used_by)];
}

struct SavedPart {
  std::string name;         // "qkv", "mlp_hidden", ...; the same in all units that have it
  std::uint64_t bytes = 0;  // of one micro-batch; a multiple of 256
  SavedFor used_by = SavedFor::kBoth;
};

}  // namespace sluice::schedule
