// The GPU's kernels as backends of the contract suites (tests/contract/kernels_contract.hpp).
#pragma once

#include <memory>
#include <string>

#include "kernels/backend/cuda_kernels.hpp"
#include "tests/contract/kernels_contract.hpp"
#include "tests/kernels/cuda/device_array.hpp"

namespace sluice::kernels::cuda {

template <CudaLibraries kLibraries>
struct CudaBackend {
  using Memory = DeviceBytes;
#ifdef SLUICE_CUDA_EMULATION
  static constexpr bool kSlow = true;
  static constexpr bool kFindsWrongTokens = true;
#else
  static constexpr bool kSlow = false;
  static constexpr bool kFindsWrongTokens = false;  // a trap takes the process's context with it
#endif
  using WrongToken = DeviceError;
  static constexpr bool kKeepsNanBits = false;
  static constexpr bool kOneSumOrder = false;
  // Seen of cuBLASLt on an H100, where the rows of a matrix are not aligned to 16 bytes.
  static constexpr bool kRoundsBeforeBias = kLibraries == CudaLibraries::kInstalled;
  static constexpr double kLseError = 4e-6;
  static std::string missing() {
    return missing_gpu();
  }
  static std::unique_ptr<Kernels> make() {
    return make_cuda_kernels({.libraries = kLibraries});
  }
  static void copy(void* to, const void* from, std::size_t bytes) {
    copy_bytes(to, from, bytes);
  }
  // Addresses of whole packs, and others.
  template <class Run>
  static void for_each_variation(const Run& run) {
    const std::unique_ptr<Kernels> kernels = make();
    for (const std::int64_t offset : {0, 1}) {
      run(testing::Variation{*kernels, offset, "offset " + std::to_string(offset)});
    }
  }
  // Tensor cores take probabilities in the dtype.
  static double probability_error(DType dtype) {
    return dtype == DType::kF32 ? 0.0 : 4.0 * host::rounding_of(dtype);
  }
};
using OwnCuda = CudaBackend<CudaLibraries::kNone>;
using InstalledCuda = CudaBackend<CudaLibraries::kInstalled>;  // cuBLASLt, cuDNN

using DeviceDTypeArray = testing::BackendArray<OwnCuda>;
template <class T>
using DeviceArray = testing::BackendNumbers<OwnCuda, T>;

}  // namespace sluice::kernels::cuda
