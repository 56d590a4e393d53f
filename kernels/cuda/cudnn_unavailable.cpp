// Where the build has no frontend of cuDNN, and in the emulation: attention is our own.
#include "kernels/cuda/fused_attention.hpp"

namespace sluice::kernels::cuda {

bool open_cudnn() {
  return false;
}

std::unique_ptr<FusedAttention> open_fused_attention() {
  return nullptr;
}

}  // namespace sluice::kernels::cuda
