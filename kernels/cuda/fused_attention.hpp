// Attention with a library's fused kernels: cuDNN's if it is installed (cudnn_attention.cpp).
// Arguments and arrays are those of attention.hpp; a caller may use either for each pass.
//
// For deterministic sums over keys in dq, the library keeps the gradients of all scores, 2 bytes
// each, between two kernels. The backward pass therefore runs in slices of the batch or of the
// heads. A slice keeps at most kScoreBytes, or is one head of keys with at most kMostScoreBytes.
// The slices follow from the shape alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

inline constexpr std::uint64_t kScoreBytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kMostScoreBytes = 2 * kScoreBytes;

// The extent of one library call: sequences, and heads of keys with the query heads that share
// them. Both divide the whole shape, and a slice of heads covers one sequence: before cuDNN 9.26
// the backward pass for sm_80 treats lse as packed, whatever its strides.
struct AttentionSlice {
  std::int64_t batch = 0, kv_heads = 0;
};
// Returns the largest slice that fits; nothing if one head of keys has too many scores.
// score_bytes: kScoreBytes but in the bench that compares slices.
std::optional<AttentionSlice> backward_slice(const AttentionShape& shape,
                                             std::uint64_t score_bytes = kScoreBytes);
// Upper bound of the library's workspace, from the needs of cuDNN 9 on sm_80 to sm_120.
std::uint64_t fused_attention_bytes(const AttentionShape& shape,
                                    std::uint64_t score_bytes = kScoreBytes);

// Not thread-safe; used by the thread that owns the stream, like Kernels.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;

  // Part of Kernels::arithmetic: "cudnn-9.19.0".
  virtual const char* name() const = 0;
  // Workspace of either pass. It depends only on the shape, so that no plan changes a bit.
  virtual std::uint64_t workspace_bytes(const AttentionShape& shape) const = 0;
  // Queues the pass. Returns false and queues nothing if the library has no kernels for the shape
  // on this GPU; the answer is always the same. The first call of a shape compiles kernels, which
  // takes a second. Throws DeviceError if a launch fails.
  virtual bool forward(StreamHandle stream, const AttentionShape& shape, const void* qkv, void* out,
                       float* lse, void* workspace) = 0;
  virtual bool backward(StreamHandle stream, const AttentionShape& shape, const void* dout,
                        const void* qkv, const void* out, const float* lse, void* dqkv,
                        void* workspace) = 0;
};

// Whether cuDNN 9 and a CUDA runtime are installed and this build has cuDNN's frontend. Warns if
// only the runtime is missing. Both libraries stay loaded; no GPU is used.
bool open_cudnn();
// Creates the kernels for the GPU of the current context, which must be current at destruction too.
// Returns null if open_cudnn() is false. Returns null with a warning if cuDNN cannot work here (its
// parts do not match each other or the driver). Throws DeviceError for other failures, such as too
// little memory, because the memory that happens to be free must not decide about bits.
std::unique_ptr<FusedAttention> open_fused_attention(std::uint64_t score_bytes = kScoreBytes);

}  // namespace sluice::kernels::cuda
