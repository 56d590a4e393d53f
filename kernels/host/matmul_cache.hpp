// Single-threaded oneDNN matmul primitives, created once per shape and kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/dtype.hpp"
#include "base/mutex.hpp"

namespace sluice::kernels::host {

// C[m, n] = op(A) op(B) (+ bias[n]), or C += if `accumulate` (fp32 C). Strides are in elements, as
// stored; a transposed operand is stored [k, m] or [n, k]. A and B have one dtype (kBF16 or kF32).
struct MatmulKey {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool transpose_a = false, transpose_b = false;
  bool bias = false, accumulate = false;
  DType dtype = DType::kBF16, bias_dtype = DType::kBF16, c_dtype = DType::kBF16;

  auto operator<=>(const MatmulKey&) const = default;
};

// Thread-safe. Holds one primitive per requested shape, one for each distinct tile of the model.
class MatmulCache {
 public:
  MatmulCache();
  ~MatmulCache();

  // Bytes of scratchpad that run() needs for this shape. The scratchpad must be 64-byte aligned.
  std::size_t scratchpad_bytes(const MatmulKey& key);
  // Runs on the calling thread only. Throws DeviceError if oneDNN fails.
  void run(const MatmulKey& key, const void* a, const void* b, const void* bias, void* c,
           void* scratchpad);

 private:
  struct Entry;
  struct Engine;
  const Entry& entry(const MatmulKey& key);

  std::unique_ptr<Engine> engine_;
  Mutex mutex_;
  std::map<MatmulKey, std::unique_ptr<Entry>> entries_
      SLUICE_GUARDED_BY(mutex_);  // entries never move
};

}  // namespace sluice::kernels::host
