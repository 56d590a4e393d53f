#include "kernels/backend/cuda_code.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

namespace sluice::kernels {
namespace {

// The kernels use products of bf16 and asynchronous copies, which begin with this capability.
constexpr int kOldest = 80;

struct CudaCode {
  int capability = 0;  // ten times the major version plus the minor one
  bool machine = true;
  bool ptx = true;
};

std::vector<CudaCode> parse_cuda_code(std::string_view architectures) {
  std::vector<CudaCode> all;
  while (!architectures.empty()) {
    const std::string_view entry = architectures.substr(0, architectures.find(','));
    architectures.remove_prefix(std::min(entry.size() + 1, architectures.size()));
    CudaCode code;
    const char* const end =
        std::from_chars(entry.data(), entry.data() + entry.size(), code.capability).ptr;
    const std::string_view rest = entry.substr(static_cast<std::size_t>(end - entry.data()));
    const bool letter = rest.starts_with('a') || rest.starts_with('f');
    code.machine = !rest.ends_with("-virtual");
    code.ptx = !letter && !rest.ends_with("-real");
    all.push_back(code);
  }
  return all;
}

std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

std::string missing_cuda_code(std::string_view architectures, int compute_major,
                              int compute_minor) {
  const int capability = 10 * compute_major + compute_minor;
  const std::string own = "it has compute capability " + capability_text(capability);
  if (capability < kOldest) {
    return own + ", but Sluice's kernels need " + capability_text(kOldest) + " or later";
  }
  for (const CudaCode& code : parse_cuda_code(architectures)) {
    if (code.capability > capability) continue;
    if (code.ptx || (code.machine && code.capability / 10 == compute_major)) return {};
  }
  return own + ", but this build has code for " + list_cuda_code(architectures) +
         "; configure it with -DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(capability);
}

std::string list_cuda_code(std::string_view architectures) {
  std::vector<int> all;
  for (const CudaCode& code : parse_cuda_code(architectures)) all.push_back(code.capability);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) text += i + 1 == all.size() ? " and " : ", ";
    text += capability_text(all[i]);
  }
  return text;
}

}  // namespace sluice::kernels
