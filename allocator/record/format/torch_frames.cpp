// A site is the innermost frame of the best kind that a stack has (TorchFrameNames::Use).
//
// The kind of a Python frame follows from its file. PyTorch's own files are those of its package,
// wherever that was installed or built: a few of its files are in nearly every stack, and the
// folder above them is the package's. A native frame has a source file, or a library with an
// offset in place of a line, or no file at all; its function tells most. Functions are written
// without arguments.
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
constexpr std::size_t kMaxTorchFolders = 16;  // a program has one

// C++ frames that are in every stack. The viewer leaves out the same ones.
constexpr std::array<std::string_view, 7> kGlueFunctions{
    "unwind::unwind",  "CapturedTraceback::gather",
    "gather_with_cpp", "PyEval_",
    "PyObject_",       "PyFunction_",
    "PyRun_"};
// Frames of every executable, and those whose function is not known.
constexpr std::array<std::string_view, 4> kStartFunctions{"_start", "__libc_start_main",
                                                          "__libc_start_call_main", "??"};
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
// Frames between an operation and the memory that it asks for.
constexpr std::array<std::string_view, 7> kAllocatorFunctions{
    "CachingAllocator",  "PluggableAllocator", "at::detail::empty_",       "at::detail::_empty",
    "at::native::empty", "_ops::empty",        "allocateCUDABlasWorkspace"};
constexpr std::array<std::string_view, 4> kTorchNamespaces{"c10::", "at::", "torch::", "caffe2::"};
constexpr std::array<std::string_view, 8> kSourceSuffixes{".cpp", ".cc", ".c",   ".cu",
                                                          ".cxx", ".h",  ".hpp", ".cuh"};
constexpr std::array<std::string_view, 6> kBinarySuffixes{".S",   ".so",  ".dll",
                                                          ".pyd", ".exe", ".dylib"};
// Parts of the paths of native source files that are not the program's: PyTorch's, the C library's
// and those of installed libraries.
constexpr std::array<std::string_view, 8> kLibrarySources{
    "c10/",           "aten/",    "ATen/",         "torch/csrc/",
    "torch/include/", "sysdeps/", "/usr/include/", "-packages/"};
// Files of the torch package that are in most stacks.
constexpr std::array<std::string_view, 12> kTorchFiles{"/torch/nn/modules/module.py",
                                                       "/torch/_tensor.py",
                                                       "/torch/_ops.py",
                                                       "/torch/optim/optimizer.py",
                                                       "/torch/autograd/graph.py",
                                                       "/torch/autograd/function.py",
                                                       "/torch/utils/_contextlib.py",
                                                       "/torch/utils/_device.py",
                                                       "/torch/lib/libtorch_cpu.so",
                                                       "/torch/lib/libtorch_cuda.so",
                                                       "/torch/lib/libtorch_python.so",
                                                       "/torch/lib/libc10_cuda.so"};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

template <std::size_t N>
bool contains_any(std::string_view text, const std::array<std::string_view, N>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [text](std::string_view part) { return contains(text, part); });
}

template <std::size_t N>
bool ends_with_any(std::string_view text, const std::array<std::string_view, N>& suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [text](std::string_view suffix) { return text.ends_with(suffix); });
}

// A file without a known suffix is a script or a notebook's cell, unless it is the interpreter.
bool is_python(std::string_view filename) {
  if (filename.empty() || filename == "??" || contains(filename, ".so.")) return false;
  if (filename.ends_with(".py")) return true;
  const std::string_view name = filename.substr(filename.rfind('/') + 1);
  return !name.starts_with("python") && !ends_with_any(filename, kSourceSuffixes) &&
         !ends_with_any(filename, kBinarySuffixes);
}

bool is_start(std::string_view function) {
  return std::find(kStartFunctions.begin(), kStartFunctions.end(), function) !=
         kStartFunctions.end();
}

bool is_glue(std::string_view function, std::string_view filename) {
  return is_start(function) || contains_any(function, kGlueFunctions) ||
         contains_any(filename, kGlueFiles);
}

// Whether the function or its result is PyTorch's: "at::f", "void c10::g<int>", not "mat::f".
bool is_torch_function(std::string_view function) {
  return std::any_of(kTorchNamespaces.begin(), kTorchNamespaces.end(), [&](std::string_view name) {
    const std::size_t at = function.find(name);
    if (at == std::string_view::npos) return false;
    return at == 0 || function[at - 1] == ' ' || function[at - 1] == '<';
  });
}

// A demangled function without its arguments: "at::(anonymous namespace)::f<int>(long)" ends at the
// last parenthesis here.
std::string_view without_arguments(std::string_view function) {
  constexpr std::string_view kAnonymous = "(anonymous namespace)";
  int depth = 0;  // of template arguments
  for (std::size_t i = 0; i < function.size(); ++i) {
    const std::string_view rest = function.substr(i);
    if (rest.starts_with(kAnonymous)) {
      i += kAnonymous.size() - 1;
    } else if (rest.starts_with("operator")) {
      const std::size_t end = function.find('(', i + std::string_view("operator()").size() - 1);
      return function.substr(0, rest.starts_with("operator()") ? function.find('(', i + 10) : end);
    } else if (function[i] == '<') {
      ++depth;
    } else if (function[i] == '>') {
      --depth;
    } else if (function[i] == '(' && depth == 0) {
      return function.substr(0, i);
    }
  }
  return function;
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

TorchFrameNames::TorchFrameNames(const PickleTree& tree, std::vector<std::string>& names)
    : tree_(tree), names_(names) {
  tree.visit_texts([this](std::string_view text) {
    for (const std::string_view file : kTorchFiles) {
      if (!text.ends_with(file)) continue;
      if (torch_folders_.size() == kMaxTorchFolders) return;
      const std::size_t above = text.size() - file.size() + std::string_view("/torch/").size();
      torch_folders_.emplace(text.substr(0, above));
    }
  });
}

bool TorchFrameNames::is_torch_package(std::string_view filename) const {
  return filename.starts_with("torch/") || contains(filename, "-packages/torch/") ||
         filename.starts_with("<frozen ") ||
         std::any_of(torch_folders_.begin(), torch_folders_.end(),
                     [&](const std::string& folder) { return filename.starts_with(folder); });
}

TorchFrameNames::Use TorchFrameNames::use_of(const TorchFrame& frame) const {
  if (is_python(frame.filename)) {
    if (is_torch_package(frame.filename)) return Use::kTorchPython;
    // An executable has no suffix either.
    return is_start(frame.function) ? Use::kGlue : Use::kProgramPython;
  }
  if (is_glue(frame.function, frame.filename)) return Use::kGlue;
  if (contains_any(frame.function, kAllocatorFunctions)) return Use::kAllocator;
  const bool is_of_program =
      ends_with_any(frame.filename, kSourceSuffixes) && frame.filename.starts_with('/') &&
      !is_torch_function(frame.function) && !contains_any(frame.filename, kLibrarySources);
  if (is_of_program) return Use::kProgramNative;
  return contains(frame.function, "Backward") && frame.function.ends_with("::apply")
             ? Use::kBackwardNode
             : Use::kNative;
}

TorchFrameNames::Frame TorchFrameNames::frame_of(PickleValue frame) {
  const auto [entry, is_new] = frames_.try_emplace(frame.id());
  if (!is_new) return entry->second;
  const auto part = [&](std::string_view key) {
    const auto value = tree_.find(frame, key);
    return value ? tree_.text(*value) : std::string_view();
  };
  const std::string_view filename = part("filename");
  std::string path(filename);
  std::replace(path.begin(), path.end(), '\\', '/');
  std::string_view function = part("name");
  const auto line = tree_.find(frame, "line");
  const bool is_native = !is_python(path);
  const bool has_no_line =
      filename == "??" || contains(filename, ".so.") || ends_with_any(filename, kBinarySuffixes);
  if (is_native && !function.empty()) function = without_arguments(function);
  // Keeps the end of a path and the beginning of a function. An offset into a library is no line.
  const TorchFrame parts{has_no_line
                             ? std::string()
                             : std::string(filename.substr(
                                   filename.size() - std::min(filename.size(), kMaxPartBytes))),
                         line && !has_no_line ? tree_.as_bits(*line).value_or(0) : 0,
                         std::string(function.substr(0, kMaxPartBytes))};
  const Use use = use_of({std::move(path), parts.line, parts.function});
  entry->second = {use, use == Use::kGlue ? 0 : intern(frame_name(parts))};
  return entry->second;
}

std::uint32_t TorchFrameNames::name_of(PickleValue frames) {
  if (frames.kind() != PickleKind::kList && frames.kind() != PickleKind::kTuple) return 0;
  const auto items = tree_.items(frames);
  if (items.empty()) return 0;
  const auto [entry, is_new] = lists_.try_emplace(frames.id());
  if (!is_new) return entry->second;
  if (items.size() == 1 && items[0].kind() == PickleKind::kDict) {
    const auto text = [&](std::string_view key) {
      const auto value = tree_.find(items[0], key);
      return value ? tree_.text(*value) : std::string_view();
    };
    if (text("filename").empty()) {
      entry->second = intern(std::string(text("name").substr(0, kMaxPartBytes)));
      return entry->second;
    }
  }
  Frame best;
  for (const PickleValue value : items) {
    if (value.kind() != PickleKind::kDict) continue;
    const Frame frame = frame_of(value);
    if (frame.use < best.use) best = frame;
    if (best.use == Use::kProgramPython) break;
  }
  entry->second = best.name;
  return best.name;
}

}  // namespace sluice::record
