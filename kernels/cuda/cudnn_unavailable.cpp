// For builds without cuDNN's frontend, and for the emulation: attention uses our own kernels.
#include "kernels/cuda/fused_attention.hpp"

namespace sluice::kernels::cuda {

bool open_cudnn() {
  return false;
}

std::unique_ptr<FusedAttention> open_fused_attention(std::uint64_t) {
  return nullptr;
}

}  // namespace sluice::kernels::cuda
