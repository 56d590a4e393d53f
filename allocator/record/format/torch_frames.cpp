#include "allocator/record/format/torch_frames.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.hpp"

namespace sluice::record {
namespace {

constexpr std::size_t kMaxNames = 1'000'000;
// All frames may share a string of any length. A name holds at most this much of each part.
constexpr std::size_t kMaxPartBytes = 512;

// C++ frames that are in every stack. The viewer leaves out the same ones.
constexpr std::array<std::string_view, 8> kGlueFunctions{
    "unwind::unwind",    "CapturedTraceback::gather",
    "gather_with_cpp",   "_start",
    "__libc_start_main", "PyEval_",
    "PyObject_",         "PyFunction_"};
constexpr std::array<std::string_view, 10> kGlueFiles{"core/boxing",
                                                      "/Register",
                                                      "/Redispatch",
                                                      "pythonrun.c",
                                                      "Modules/main.c",
                                                      "Objects/call.c",
                                                      "Objects/methodobject.c",
                                                      "pycore_ceval.h",
                                                      "ceval.c",
                                                      "cpython/abstract.h"};
constexpr std::array<std::string_view, 10> kCppSuffixes{".cpp", ".cc",  ".c",   ".cu", ".cxx",
                                                        ".h",   ".hpp", ".cuh", ".S",  ".so"};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_python(std::string_view filename) {
  if (filename.empty() || filename == "??" || contains(filename, ".so.")) return false;
  return std::none_of(kCppSuffixes.begin(), kCppSuffixes.end(),
                      [&](std::string_view suffix) { return filename.ends_with(suffix); });
}

bool is_torch_package(std::string_view filename) {
  return filename.starts_with("torch/") || contains(filename, "-packages/torch/") ||
         filename.starts_with("<frozen ");
}

bool is_glue(std::string_view function, std::string_view filename) {
  const auto in = [](std::string_view text) {
    return [text](std::string_view part) { return contains(text, part); };
  };
  return std::any_of(kGlueFunctions.begin(), kGlueFunctions.end(), in(function)) ||
         std::any_of(kGlueFiles.begin(), kGlueFiles.end(), in(filename));
}

}  // namespace

std::string frame_name(const TorchFrame& frame) {
  if (frame.filename.empty() && frame.line == 0) return frame.function;
  return frame.filename + ":" + std::to_string(frame.line) + " " + frame.function;
}

TorchFrame parse_frame_name(std::string_view name) {
  for (std::size_t space = name.find(' '); space != std::string_view::npos;
       space = name.find(' ', space + 1)) {
    const std::size_t colon = name.rfind(':', space);
    if (colon == std::string_view::npos || colon == 0 || colon + 1 == space) continue;
    std::uint64_t line = 0;
    const char* const end = name.data() + space;
    const auto parsed = std::from_chars(name.data() + colon + 1, end, line);
    if (parsed.ec != std::errc() || parsed.ptr != end || line > INT64_MAX) continue;
    return {std::string(name.substr(0, colon)), line, std::string(name.substr(space + 1))};
  }
  return {"", 0, std::string(name)};
}

std::uint32_t TorchFrameNames::intern(const std::string& name) {
  if (name.empty()) return 0;
  const auto [entry, is_new] =
      interned_.try_emplace(name, static_cast<std::uint32_t>(names_.size()));
  if (is_new) {
    if (names_.size() > kMaxNames) {
      throw InputError("a snapshot has above " + std::to_string(kMaxNames) + " different names");
    }
    names_.push_back(name);
  }
  return entry->second;
}

TorchFrameNames::Frame TorchFrameNames::frame_of(PickleValue frame) {
  const auto [entry, is_new] = frames_.try_emplace(frame.id());
  if (!is_new) return entry->second;
  const auto part = [&](std::string_view key) {
    const auto value = tree_.find(frame, key);
    return value ? tree_.text(*value) : std::string_view();
  };
  const std::string_view filename = part("filename");
  const std::string_view function = part("name");
  const auto line = tree_.find(frame, "line");
  // Keeps the end of a path and the beginning of a function.
  const TorchFrame parts{
      std::string(filename.substr(filename.size() - std::min(filename.size(), kMaxPartBytes))),
      line ? tree_.as_bits(*line).value_or(0) : 0, std::string(function.substr(0, kMaxPartBytes))};
  Use use = Use::kCpp;
  if (filename.empty()) {
    use = Use::kCaller;  // a name that the caller gave, not a frame
  } else if (is_python(filename)) {
    use = is_torch_package(filename) ? Use::kTorchPython : Use::kCaller;
  } else if (is_glue(parts.function, parts.filename)) {
    use = Use::kGlue;
  }
  entry->second = {use, use == Use::kGlue ? 0 : intern(frame_name(parts))};
  return entry->second;
}

std::uint32_t TorchFrameNames::name_of(PickleValue frames) {
  if (frames.kind() != PickleKind::kList && frames.kind() != PickleKind::kTuple) return 0;
  if (tree_.items(frames).empty()) return 0;
  const auto [entry, is_new] = lists_.try_emplace(frames.id());
  if (!is_new) return entry->second;
  Frame best;
  for (const PickleValue value : tree_.items(frames)) {
    if (value.kind() != PickleKind::kDict) continue;
    const Frame frame = frame_of(value);
    if (frame.use < best.use) best = frame;
    if (best.use == Use::kCaller) break;
  }
  entry->second = best.name;
  return best.name;
}

}  // namespace sluice::record
