// The named parts of the values that a forward pass saves for backward.
//
// Parts lie one after another in the unit's saved region, each at a multiple of 256 bytes. Backward
// has two halves, and most parts serve only one of them. So each part may wait in a tier of its
// own, come back when its half begins, and be released when its half ends. Or it does not wait at
// all: the unit's backward visit recomputes it from other parts or from the unit's input.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::schedule {

// The halves of backward that read a part.
enum class SavedFor : std::uint8_t { kBoth, kBackwardInput, kBackwardWeight };

// The kind of operation that makes a part. It tells cheap parts from dear ones.
enum class MadeBy : std::uint8_t { kWholePass, kElementwise, kAttention, kProduct };

// A set of a unit's parts: bit p stands for the part at index p. The last bit is the unit's input.
using PartMask = std::uint32_t;
inline constexpr std::size_t kMostParts = 31;
inline constexpr PartMask kUnitInput = PartMask{1} << kMostParts;
constexpr PartMask part_bit(std::size_t part) {
  return PartMask{1} << part;
}

struct SavedPart {
  std::string name;         // "qkv", "mlp_hidden", ...; the same in all units that have it
  std::uint64_t bytes = 0;  // of one micro-batch; a multiple of 256
  SavedFor used_by = SavedFor::kBoth;
  // The operation that makes the part, the parts that it reads, and other parts that it makes too.
  // kWholePass: the part is recomputed only together with all others of the unit.
  MadeBy made_by = MadeBy::kWholePass;
  PartMask made_from = 0;
  PartMask made_with = 0;
  bool operator==(const SavedPart&) const = default;
};

// All parts of a unit. A region without named parts counts as one part.
constexpr PartMask all_parts(const std::vector<SavedPart>& parts) {
  return parts.empty() ? 1 : (PartMask{1} << parts.size()) - 1;
}

// The parts that operations of this kind make, and the parts that they make besides.
inline PartMask parts_made_by(const std::vector<SavedPart>& parts, MadeBy made_by) {
  PartMask mask = 0;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].made_by == made_by) mask |= part_bit(part) | parts[part].made_with;
  }
  return mask;
}

// The parts, and perhaps the input, that have to be there before the parts of `mask` can be made.
inline PartMask sources_of(const std::vector<SavedPart>& parts, PartMask mask) {
  PartMask sources = 0;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if ((mask & part_bit(part)) != 0) sources |= parts[part].made_from;
  }
  return sources & ~mask;
}

// Whether the parts of `mask` can be recomputed while the others are kept.
inline bool can_be_remade(const std::vector<SavedPart>& parts, PartMask mask) {
  if (mask == all_parts(parts)) return true;
  if ((mask & ~all_parts(parts)) != 0) return false;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if ((mask & part_bit(part)) == 0) continue;
    if (parts[part].made_by == MadeBy::kWholePass) return false;
    if ((parts[part].made_with & ~mask) != 0) return false;
  }
  return true;
}

// The parts that lie within bytes [begin, end) of the saved region.
inline PartMask parts_within(const std::vector<SavedPart>& parts, std::uint64_t begin,
                             std::uint64_t end) {
  PartMask mask = 0;
  std::uint64_t at = 0;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (begin <= at && at + parts[part].bytes <= end) mask |= part_bit(part);
    at += parts[part].bytes;
  }
  return parts.empty() ? 1 : mask;
}

// The bytes of the parts of `mask`.
inline std::uint64_t bytes_of_parts(const std::vector<SavedPart>& parts, PartMask mask) {
  std::uint64_t bytes = 0;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if ((mask & part_bit(part)) != 0) bytes += parts[part].bytes;
  }
  return bytes;
}

}  // namespace sluice::schedule
