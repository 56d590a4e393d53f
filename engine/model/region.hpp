// Layers cut context and workspace into parts of one buffer, each at a multiple of 256 bytes.
// SavedRegion does the same with the declared parts of the saved region.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.hpp"
#include "engine/model/layer.hpp"

namespace sluice::model {

class Region {
 public:
  explicit Region(std::byte* base = nullptr) : base_(base) {}
  // The next part, or null if the base is null (then only sizes are counted).
  std::byte* take(std::uint64_t bytes) {
    const std::uint64_t at = used_;
    used_ += round_up(bytes, kTensorAlignmentBytes);
    return base_ == nullptr ? nullptr : base_ + at;
  }
  std::uint64_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  std::uint64_t used_ = 0;
};

// A unit's saved region, cut into parts as its layer declares them.
class SavedRegion {
 public:
  SavedRegion(const std::vector<schedule::SavedPart>& parts, const SavedRanges& ranges)
      : parts_(parts), ranges_(ranges) {}
  // The next part, or null if the pass does not use it.
  std::byte* take() {
    const std::uint64_t bytes = parts_[next_++].bytes;
    const std::uint64_t at = used_;
    used_ += bytes;
    return ranges_.at(at, bytes);
  }
  float* take_floats() { return reinterpret_cast<float*>(take()); }

 private:
  const std::vector<schedule::SavedPart>& parts_;
  const SavedRanges& ranges_;
  std::size_t next_ = 0;
  std::uint64_t used_ = 0;
};

inline std::uint64_t saved_bytes(const std::vector<schedule::SavedPart>& parts) {
  std::uint64_t bytes = 0;
  for (const schedule::SavedPart& part : parts) bytes += part.bytes;
  return bytes;
}

}  // namespace sluice::model
