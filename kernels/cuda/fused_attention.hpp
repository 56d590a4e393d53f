// Attention by a library's fused kernels: cuDNN's where it is installed (cudnn_attention.cpp).
// Arguments and arrays as in attention.hpp, with which a caller may mix it from pass to pass.
//
// The library has deterministic sums over keys for dq by keeping the gradients of all scores, 2
// bytes each, between two kernels. So its backward pass is made in slices of the batch, or of the
// heads, that keep at most kScoreBytes, or one head of keys with at most kMostScoreBytes; the
// slices follow from the shape alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

inline constexpr std::uint64_t kScoreBytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kMostScoreBytes = 2 * kScoreBytes;

// One call of the library: so many sequences, so many heads of keys and the heads of queries that
// share them. Both divide what the whole shape has, and a slice of heads is of one sequence: before
// cuDNN 9.26 the backward pass for sm_80 takes lse for packed, whatever its strides.
struct AttentionSlice {
  std::int64_t batch = 0, kv_heads = 0;
};
// The largest whose scores' gradients fit; nothing where one head of keys has too many.
std::optional<AttentionSlice> backward_slice(const AttentionShape& shape);
// What the library needs to work in at most, by what cuDNN 9 asks for on sm_80 to sm_120.
std::uint64_t fused_attention_bytes(const AttentionShape& shape);

// Not thread-safe: it serves the thread that owns the stream, as Kernels does.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;

  // Part of Kernels::arithmetic: "cudnn-9.19.0".
  virtual const char* name() const = 0;
  // What either pass may use. Of the shape alone, so that no plan changes a bit.
  virtual std::uint64_t workspace_bytes(const AttentionShape& shape) const = 0;
  // Queues the pass; or queues nothing and returns false where the library has no kernels for the
  // shape on this GPU, the same answer each time. The first call of a shape compiles kernels, which
  // takes a second. Throws DeviceError where a launch fails.
  virtual bool forward(StreamHandle stream, const AttentionShape& shape, const void* qkv, void* out,
                       float* lse, void* workspace) = 0;
  virtual bool backward(StreamHandle stream, const AttentionShape& shape, const void* dout,
                        const void* qkv, const void* out, const float* lse, void* dqkv,
                        void* workspace) = 0;
};

// Whether cuDNN 9 is installed, with a CUDA runtime, and this build has its frontend; without the
// runtime it warns. Both stay loaded; no GPU is touched.
bool open_cudnn();
// Serves the GPU whose context is current, which must be so when it is destroyed, too. Null unless
// open_cudnn(), and, with a warning, where cuDNN cannot work here (its parts do not fit each other,
// or the driver does not suit it). Throws DeviceError where it fails in another way, as for want of
// memory: what happens to be free must not decide about bits.
std::unique_ptr<FusedAttention> open_fused_attention();

}  // namespace sluice::kernels::cuda
