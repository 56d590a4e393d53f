// Reduces a call stack of a PyTorch snapshot to one name: the site that a reader would look for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator/record/format/pickle.hpp"

namespace sluice::record {

struct TorchFrame {
  std::string filename;
  std::uint64_t line = 0;
  std::string function;
};
// "file:line function", or the function alone where there is no file; and back.
std::string frame_name(const TorchFrame& frame);
TorchFrame parse_frame_name(std::string_view name);

// Names lists of frames, and interns the names in a snapshot's table. A list begins with the
// innermost frame. Its name is that of the innermost Python frame outside the torch package; else
// of the innermost Python frame; else of the innermost C++ frame that is not glue code; else "".
class TorchFrameNames {
 public:
  // Precondition: names[0] is "". Both arguments must outlive this object.
  TorchFrameNames(const PickleTree& tree, std::vector<std::string>& names)
      : tree_(tree), names_(names) {}
  // The name of a list of dicts {name, filename, line}; 0 for anything else. InputError for more
  // than a million names.
  std::uint32_t name_of(PickleValue frames);
  std::uint32_t intern(const std::string& name);

 private:
  // A smaller value is a better name.
  enum class Use : std::uint8_t { kCaller, kTorchPython, kCpp, kGlue };
  struct Frame {
    Use use = Use::kGlue;
    std::uint32_t name = 0;
  };
  Frame frame_of(PickleValue frame);

  const PickleTree& tree_;
  std::vector<std::string>& names_;
  std::unordered_map<std::uint64_t, std::uint32_t> lists_;  // by id, because snapshots share lists
  std::unordered_map<std::uint64_t, Frame> frames_;
  std::unordered_map<std::string, std::uint32_t> interned_;
};

}  // namespace sluice::record
