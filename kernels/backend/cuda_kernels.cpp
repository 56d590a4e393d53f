// Forwards each operation to its family in kernels/cuda, with the stream and the libraries'
// backends.
#include "kernels/backend/cuda_kernels.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.hpp"
#include "device/cuda/cuda_context.hpp"
#include "device/cuda/cuda_device.hpp"
#include "kernels/backend/cuda_code.hpp"
#include "kernels/cuda/activations.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/attention_part.hpp"
#include "kernels/cuda/cross_entropy.hpp"
#include "kernels/cuda/elementwise.hpp"
#include "kernels/cuda/embedding.hpp"
#include "kernels/cuda/fused_attention.hpp"
#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/gemm_plain.hpp"
#include "kernels/cuda/gradients.hpp"
#include "kernels/cuda/head.hpp"
#include "kernels/cuda/norm.hpp"
#include "kernels/cuda/optimizer/update.hpp"
#include "kernels/cuda/stream.hpp"

namespace sluice::kernels {
namespace {

// Names everything that a result's bits depend on. The sums of our own kernels follow from shapes
// alone, but libraries choose algorithms by GPU, and the compiler generates code by architecture.
std::string arithmetic_of(const device::CudaDeviceInfo& device, const cuda::GemmBackend& gemm,
                          const cuda::FusedAttention* attention) {
  return "cuda/" + device.name + "/sm_" + std::to_string(device.compute_major) +
         std::to_string(device.compute_minor) + "/" + gemm.name() +
         (attention == nullptr ? std::string() : std::string("/") + attention->name());
}

std::unique_ptr<cuda::FusedAttention> open_attention(const device::CudaContext& context,
                                                     std::uint64_t score_bytes) {
  const device::CurrentContext current(context);
  return cuda::open_fused_attention(score_bytes == 0 ? cuda::kScoreBytes : score_bytes);
}

class CudaKernels final : public Kernels {
 public:
  CudaKernels(const device::CudaDeviceInfo& device, const CudaKernelOptions& options)
      : context_(device::hold_cuda_context(device.ordinal)),
        gemm_(options.libraries == CudaLibraries::kNone
                  ? cuda::make_plain_gemm()
                  : cuda::make_gemm_backend(cuda::gelu_epilogue_on(device.compute_major))),
        attention_(options.libraries == CudaLibraries::kNone
                       ? nullptr
                       : open_attention(*context_, options.attention_score_bytes)),
        arithmetic_(arithmetic_of(device, *gemm_, attention_.get())) {}
  // Library handles must be destroyed in the context that created them.
  ~CudaKernels() override {
    try {
      const device::CurrentContext current(*context_);
      attention_.reset();
      gemm_.reset();
    } catch (const DeviceError&) {  // the context is lost; the handles end without it
    }
  }

  void set_stream(void* native) override { stream_ = static_cast<cuda::StreamHandle>(native); }
  const char* arithmetic() const override { return arithmetic_.c_str(); }

  std::uint64_t gemm_workspace_bytes(const GemmShape& shape) const override {
    return cuda::gemm_workspace_bytes(*gemm_, shape);
  }

  void gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
            void* workspace) override {
    cuda::gemm(stream_, *gemm_, shape, a, b, bias, c, workspace);
  }

  void gemm_gelu(const GemmShape& shape, const void* a, const void* b, const void* bias, void* x,
                 void* y, void* workspace) override {
    cuda::gemm_gelu(stream_, *gemm_, shape, a, b, bias, x, y, workspace);
  }

  bool gelu_reads_rounded(DType dtype) const override { return !gemm_->fuses_activations(dtype); }

  void gemm_gelu_backward(const GemmShape& shape, const void* a, const void* b, const void* x,
                          void* dx, void* workspace) override {
    cuda::gemm_gelu_backward(stream_, *gemm_, shape, a, b, x, dx, workspace);
  }

  void zero(void* data, std::uint64_t bytes) override { cuda::zero(stream_, data, bytes); }

  void column_sum(const void* x, void* out, std::int64_t rows, std::int64_t cols,
                  DType dtype) override {
    cuda::column_sum(stream_, x, out, rows, cols, dtype);
  }

  void norm_forward(const NormShape& shape, const void* x, const void* weight, const void* bias,
                    void* y, float* mean, float* rstd) override {
    cuda::norm_forward(stream_, shape, x, weight, bias, y, mean, rstd);
  }

  void norm_backward_input(const NormShape& shape, const void* dy, const void* x,
                           const void* weight, const float* mean, const float* rstd,
                           const void* residual, void* dx) override {
    cuda::norm_backward_input(stream_, shape, dy, x, weight, mean, rstd, residual, dx);
  }

  void norm_backward_weight(const NormShape& shape, const void* dy, const void* x,
                            const float* mean, const float* rstd, void* dweight,
                            void* dbias) override {
    cuda::norm_backward_weight(stream_, shape, dy, x, mean, rstd, dweight, dbias);
  }

  void add(const void* a, const void* b, void* out, std::int64_t elems, DType dtype) override {
    cuda::add(stream_, a, b, out, elems, dtype);
  }

  void copy_columns(const void* in, Columns from, void* out, Columns to, std::int64_t rows,
                    std::int64_t cols, DType dtype) override {
    cuda::copy_columns(stream_, in, from, out, to, rows, cols, dtype);
  }

  void gelu_forward(const void* x, void* y, std::int64_t elems, DType dtype) override {
    cuda::gelu_forward(stream_, x, y, elems, dtype);
  }

  void gelu_backward(const void* dy, const void* x, void* dx, std::int64_t elems,
                     DType dtype) override {
    cuda::gelu_backward(stream_, dy, x, dx, elems, dtype);
  }

  void swiglu_forward(const void* x, void* y, std::int64_t rows, std::int64_t cols,
                      DType dtype) override {
    cuda::swiglu_forward(stream_, x, y, rows, cols, dtype);
  }

  void swiglu_backward(const void* dy, const void* x, void* dx, std::int64_t rows,
                       std::int64_t cols, DType dtype) override {
    cuda::swiglu_backward(stream_, dy, x, dx, rows, cols, dtype);
  }

  void rope(const AttentionShape& shape, float base, bool inverse, void* qkv) override {
    cuda::rope(stream_, shape, base, inverse, qkv);
  }

  std::uint64_t attention_workspace_bytes(const AttentionShape& shape) const override {
    const std::uint64_t own_bytes = cuda::attention_workspace_bytes(shape);
    return attention_ == nullptr ? own_bytes
                                 : std::max(own_bytes, attention_->workspace_bytes(shape));
  }

  void attention_forward(const AttentionShape& shape, const void* qkv, void* out, float* lse,
                         void* workspace) override {
    if (attention_ != nullptr && attention_->forward(stream_, shape, qkv, out, lse, workspace)) {
      return;
    }
    cuda::attention_forward(stream_, shape, qkv, out, lse, workspace);
  }

  void attention_backward(const AttentionShape& shape, const void* dout, const void* qkv,
                          const void* out, const float* lse, void* dqkv, void* workspace) override {
    if (attention_ != nullptr &&
        attention_->backward(stream_, shape, dout, qkv, out, lse, dqkv, workspace)) {
      return;
    }
    cuda::attention_backward(stream_, shape, dout, qkv, out, lse, dqkv, workspace);
  }

  std::uint64_t attention_part_workspace_bytes(const AttentionPart& part) const override {
    return cuda::attention_part_workspace_bytes(part);
  }

  void attention_part_forward(const AttentionPart& part, const void* qkv, const void* kv,
                              bool first, float* out, float* lse, void* /*workspace*/) override {
    cuda::attention_part_forward(stream_, part, qkv, kv, first, out, lse);
  }

  void attention_part_backward(const AttentionPart& part, const void* dout, const void* qkv,
                               const void* kv, const void* out, const float* lse, float* dq,
                               float* dkv, void* workspace) override {
    cuda::attention_part_backward(stream_, part, dout, qkv, kv, out, lse, dq, dkv, workspace);
  }

  void embedding_forward(const std::int32_t* tokens, TokenRange range, const void* table,
                         const void* positions, void* out, std::int64_t rows, std::int64_t time,
                         std::int64_t hidden, DType dtype) override {
    cuda::embedding_forward(stream_, tokens, range, table, positions, out, rows, time, hidden,
                            dtype);
  }

  std::uint64_t embedding_backward_workspace_bytes(std::int64_t rows,
                                                   std::int64_t vocab) const override {
    return cuda::embedding_backward_workspace_bytes(rows, vocab);
  }

  void embedding_backward(const std::int32_t* tokens, TokenRange range, const void* dout,
                          void* dtable, void* dpositions, std::int64_t rows, std::int64_t time,
                          std::int64_t max_time, std::int64_t hidden, DType dtype,
                          void* workspace) override {
    cuda::embedding_backward(stream_, tokens, range, dout, dtable, dpositions, rows, time, max_time,
                             hidden, dtype, workspace);
  }

  std::uint64_t head_workspace_bytes(const HeadShape& shape) const override {
    return cuda::head_workspace_bytes(*gemm_, shape);
  }

  void head_forward(const HeadShape& shape, const void* x, const void* w,
                    const std::int32_t* targets, float loss_scale, double* loss_sum, float* lse,
                    void* dx, void* workspace) override {
    cuda::head_forward(stream_, *gemm_, shape, x, w, targets, loss_scale, loss_sum, lse, dx,
                       workspace);
  }

  void head_backward_weight(const HeadShape& shape, const void* x, const void* w,
                            const std::int32_t* targets, float loss_scale, const float* lse,
                            void* dw, void* workspace) override {
    cuda::head_backward_weight(stream_, *gemm_, shape, x, w, targets, loss_scale, lse, dw,
                               workspace);
  }

  void head_statistics(const HeadShape& shape, const void* x, const void* w,
                       const std::int32_t* targets, const RowStatistics& statistics,
                       void* workspace) override {
    cuda::head_statistics(stream_, *gemm_, shape, x, w, targets, statistics, workspace);
  }

  void head_rescale(std::int64_t rows, const RowStatistics& statistics) override {
    cuda::rescale_sums(stream_, rows, statistics);
  }

  void head_loss(std::int64_t rows, const RowStatistics& statistics, double* loss_sum,
                 float* lse) override {
    cuda::loss_of_statistics(stream_, rows, statistics, loss_sum, lse);
  }

  void head_input_gradient(const HeadShape& shape, const void* x, const void* w,
                           const std::int32_t* targets, float loss_scale, const float* lse,
                           void* dx, void* workspace) override {
    cuda::head_input_gradient(stream_, *gemm_, shape, x, w, targets, loss_scale, lse, dx,
                              workspace);
  }

  void accumulate(float* accumulator, const void* grad, DType grad_dtype, bool first,
                  std::int64_t elems) override {
    cuda::accumulate(stream_, accumulator, grad, grad_dtype, first, elems);
  }

  void fold(void* into, const void* from, DType dtype, std::int64_t elems) override {
    cuda::fold(stream_, into, from, dtype, elems);
  }

  void squared_norm_blocks(const void* grad, DType dtype, DType round_to,
                           std::span<const Block> blocks, double* partial) override {
    cuda::squared_norm_blocks(stream_, grad, dtype, round_to, blocks, partial);
  }

  std::uint64_t update_workspace_bytes(const OptimizerOptions& options,
                                       std::span<const ParameterSegment> segments) const override {
    return cuda::update_workspace_bytes(*gemm_, options, segments);
  }

  void update(const OptimizerOptions& options, const UpdateBuffers& buffers,
              std::span<const ParameterSegment> segments, const UpdateScalars& scalars,
              void* workspace) override {
    cuda::update(stream_, *gemm_, options, buffers, segments, scalars, workspace);
  }

  void cast(const void* in, DType in_dtype, void* out, DType out_dtype, bool weight_rounding,
            std::int64_t elems) override {
    cuda::cast(stream_, in, in_dtype, out, out_dtype, weight_rounding, elems);
  }

 private:
  cuda::StreamHandle stream_ = nullptr;
  const std::shared_ptr<const device::CudaContext> context_;
  std::unique_ptr<cuda::GemmBackend> gemm_;
  std::unique_ptr<cuda::FusedAttention> attention_;  // null: only our own kernels
  const std::string arithmetic_;
};

}  // namespace

std::string cuda_kernels_missing(int compute_major, int compute_minor, int driver_version) {
  const std::string missing = missing_cuda_code(SLUICE_CUDA_CODE, compute_major, compute_minor);
  if (!missing.empty()) return missing;
  // A CUDA runtime works with drivers of its own major version and later ones.
  constexpr int kMajor = CUDART_VERSION / 1000 * 1000;
  if (driver_version < kMajor) {
    return "its driver supports CUDA " + std::to_string(driver_version / 1000) +
           ", but this build needs a driver for CUDA " + std::to_string(kMajor / 1000);
  }
  return {};
}

std::string describe_cuda_build() {
  return "CUDA " + std::to_string(CUDART_VERSION / 1000) + "." +
         std::to_string(CUDART_VERSION % 1000 / 10) + ", code for compute capability " +
         list_cuda_code(SLUICE_CUDA_CODE);
}

std::unique_ptr<Kernels> make_cuda_kernels(const CudaKernelOptions& options) {
  const device::CudaSearch search = device::find_cuda_devices();
  for (const device::CudaDeviceInfo& device : search.devices) {
    if (device.ordinal == options.ordinal) {
      return std::make_unique<CudaKernels>(device, options);
    }
  }
  throw DeviceError(search.devices.empty() ? "no GPU to compute on: " + search.missing
                                           : "there is no GPU " + std::to_string(options.ordinal));
}

}  // namespace sluice::kernels
