# The kernel sources of this folder. Read twice: by kernels/CMakeLists.txt for nvcc, and by
# tests/support/cuda_emulation/CMakeLists.txt for the host's compiler.

# Kernels whose bits must equal the host's: nvcc fuses nothing and flushes nothing there.
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
  attention_plain.cu
  cross_entropy.cu
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

# What the emulation has in its own way.
set(SLUICE_CUDA_DEVICE_SOURCES
  simt_device.cu)
