# The kernel sources of this folder. Two list files include this one: kernels/cuda/CMakeLists.txt
# for nvcc, and tests/support/cuda_emulation/CMakeLists.txt for the host's compiler.

# Kernels with the host's bits: nvcc must not fuse operations or flush denormals there.
set(SLUICE_CUDA_EXACT_SOURCES
  elementwise.cu
  embedding.cu
  gradients.cu
  optimizer/adafactor.cu
  optimizer/elementwise_rules.cu
  optimizer/muon.cu
  optimizer/sm3.cu)

set(SLUICE_CUDA_SOURCES
  ${SLUICE_CUDA_EXACT_SOURCES}
  activations.cu
  attention.cu
  attention_backward.cu
  attention_forward.cu
  attention_part.cu
  attention_plain.cu
  cross_entropy.cu
  ../backend/cuda_code.cpp
  ../backend/cuda_kernels.cpp
  cublaslt.cpp
  fused_attention.cpp
  gemm.cpp
  gemm_bias.cu
  gemm_cublaslt.cpp
  gemm_plain.cu
  head.cpp
  norm.cu
  optimizer/update.cpp)

# The emulation has its own version of these.
set(SLUICE_CUDA_DEVICE_SOURCES
  simt_device.cu)
