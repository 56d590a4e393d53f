#include "tools/sluice/version_text.hpp"

#include "collectives/gloo/gloo_communicator.hpp"
#include "kernels/backend/cuda_kernels.hpp"
#include "tools/bench/adam_traffic.hpp"
#include "tools/sluice/sluice_commit.hpp"  // made anew by each build

namespace sluice::cli {

std::string version_text() {
  std::string text = "sluice " SLUICE_VERSION;
  const std::string commit = SLUICE_COMMIT;
  if (!commit.empty()) text += " (commit " + commit + ")";
  text += std::string("\ninstruction set  ") + bench::vector_instruction_set();
  text += "\nlibraries        " SLUICE_LIBRARIES;
  if (collectives::gloo_missing().empty()) text += ", Gloo";
  const std::string cuda = kernels::describe_cuda_build();
  return text + "\nGPUs             " + (cuda.empty() ? "none: built without CUDA" : cuda);
}

}  // namespace sluice::cli
