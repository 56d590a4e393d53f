// Reduces a call stack of a PyTorch snapshot to one name: the site that a reader would look for.
#pragma once

#include <cstdint>
#include <set>
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
// innermost frame. Its name is that of the innermost frame of the first of these kinds that it has:
// a line of Python outside the torch package; a line of native source that is neither PyTorch's nor
// a library's; a line of torch's Python; the node of a backward pass; another native function,
// first those that are no part of the allocator. "" if there is none. A list of one frame without a
// file is a name that the caller gave.
class TorchFrameNames {
 public:
  // Precondition: names[0] is "". Both arguments must outlive this object.
  TorchFrameNames(const PickleTree& tree, std::vector<std::string>& names);
  // The name of a list of dicts {name, filename, line}; 0 for anything else. InputError for more
  // than a million names.
  std::uint32_t name_of(PickleValue frames);
  std::uint32_t intern(const std::string& name);

 private:
  // A smaller value is a better name.
  enum class Use : std::uint8_t {
    kProgramPython,
    kProgramNative,
    kTorchPython,
    kBackwardNode,
    kNative,
    kAllocator,
    kGlue
  };
  struct Frame {
    Use use = Use::kGlue;
    std::uint32_t name = 0;
  };
  bool is_torch_package(std::string_view filename) const;
  Use use_of(const TorchFrame& frame) const;
  Frame frame_of(PickleValue frame);

  const PickleTree& tree_;
  std::vector<std::string>& names_;
  std::set<std::string, std::less<>> torch_folders_;  // where the package lies, with "/torch/"
  std::unordered_map<std::uint64_t, std::uint32_t> lists_;  // by id, because snapshots share lists
  std::unordered_map<std::uint64_t, Frame> frames_;
  std::unordered_map<std::string, std::uint32_t> interned_;
};

}  // namespace sluice::record
