// Kernels for devices with CPU memory. Each call computes on a fixed team of oneTBB threads before
// it returns. Thread-safe: lanes may call at once, each with its own buffers and workspace.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/host/gemm.hpp"
#include "kernels/host/optimizer/muon.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class HostKernels final : public Kernels {
 public:
  // Throws InputError if the options require native bf16 and the CPU does not have it.
  explicit HostKernels(const HostKernelOptions& options);

  void set_stream(void* native) override;
  const char* arithmetic() const override;
  std::uint64_t gemm_workspace_bytes(const GemmShape& shape) const override;
  void gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
            void* workspace) override;
  void zero(void* data, std::uint64_t bytes) override;
  void column_sum(const void* x, void* out, std::int64_t rows, std::int64_t cols,
                  DType dtype) override;
  void norm_forward(const NormShape& shape, const void* x, const void* weight, const void* bias,
                    void* y, float* mean, float* rstd) override;
  void norm_backward_input(const NormShape& shape, const void* dy, const void* x,
                           const void* weight, const float* mean, const float* rstd,
                           const void* residual, void* dx) override;
  void norm_backward_weight(const NormShape& shape, const void* dy, const void* x,
                            const float* mean, const float* rstd, void* dweight,
                            void* dbias) override;
  void add(const void* a, const void* b, void* out, std::int64_t elems, DType dtype) override;
  void gelu_forward(const void* x, void* y, std::int64_t elems, DType dtype) override;
  void gelu_backward(const void* dy, const void* x, void* dx, std::int64_t elems,
                     DType dtype) override;
  void swiglu_forward(const void* x, void* y, std::int64_t rows, std::int64_t cols,
                      DType dtype) override;
  void swiglu_backward(const void* dy, const void* x, void* dx, std::int64_t rows,
                       std::int64_t cols, DType dtype) override;
  void rope(const AttentionShape& shape, float base, bool inverse, void* qkv) override;
  std::uint64_t attention_workspace_bytes(const AttentionShape& shape) const override;
  void attention_forward(const AttentionShape& shape, const void* qkv, void* out, float* lse,
                         void* workspace) override;
  void attention_backward(const AttentionShape& shape, const void* dout, const void* qkv,
                          const void* out, const float* lse, void* dqkv, void* workspace) override;
  std::uint64_t attention_part_workspace_bytes(const AttentionPart& part) const override;
  void attention_part_forward(const AttentionPart& part, const void* qkv, const void* kv,
                              bool first, float* out, float* lse, void* workspace) override;
  void attention_part_backward(const AttentionPart& part, const void* dout, const void* qkv,
                               const void* kv, const void* out, const float* lse, float* dq,
                               float* dkv, void* workspace) override;
  void embedding_forward(const std::int32_t* tokens, TokenRange range, const void* table,
                         const void* positions, void* out, std::int64_t rows, std::int64_t time,
                         std::int64_t hidden, DType dtype) override;
  std::uint64_t embedding_backward_workspace_bytes(std::int64_t rows,
                                                   std::int64_t vocab) const override;
  void embedding_backward(const std::int32_t* tokens, TokenRange range, const void* dout,
                          void* dtable, void* dpositions, std::int64_t rows, std::int64_t time,
                          std::int64_t max_time, std::int64_t hidden, DType dtype,
                          void* workspace) override;
  std::uint64_t head_workspace_bytes(const HeadShape& shape) const override;
  void head_forward(const HeadShape& shape, const void* x, const void* w,
                    const std::int32_t* targets, float loss_scale, double* loss_sum, float* lse,
                    void* dx, void* workspace) override;
  void head_backward_weight(const HeadShape& shape, const void* x, const void* w,
                            const std::int32_t* targets, float loss_scale, const float* lse,
                            void* dw, void* workspace) override;
  void head_statistics(const HeadShape& shape, const void* x, const void* w,
                       const std::int32_t* targets, const RowStatistics& statistics,
                       void* workspace) override;
  void copy_columns(const void* in, Columns from, void* out, Columns to, std::int64_t rows,
                    std::int64_t cols, DType dtype) override;
  void head_rescale(std::int64_t rows, const RowStatistics& statistics) override;
  void head_loss(std::int64_t rows, const RowStatistics& statistics, double* loss_sum,
                 float* lse) override;
  void head_input_gradient(const HeadShape& shape, const void* x, const void* w,
                           const std::int32_t* targets, float loss_scale, const float* lse,
                           void* dx, void* workspace) override;
  void accumulate(float* accumulator, const void* grad, DType grad_dtype, bool first,
                  std::int64_t elems) override;
  void fold(void* into, const void* from, DType dtype, std::int64_t elems) override;
  void squared_norm_blocks(const void* grad, DType dtype, DType round_to,
                           std::span<const Block> blocks, double* partial) override;
  std::uint64_t update_workspace_bytes(const OptimizerOptions& options,
                                       std::span<const ParameterSegment> segments) const override;
  void update(const OptimizerOptions& options, const UpdateBuffers& buffers,
              std::span<const ParameterSegment> segments, const UpdateScalars& scalars,
              void* workspace) override;
  void cast(const void* in, DType in_dtype, void* out, DType out_dtype, bool weight_rounding,
            std::int64_t elems) override;

 private:
  Parallel parallel_;
  Gemm gemm_;
  Muon muon_{gemm_};
  std::string arithmetic_;
};

}  // namespace sluice::kernels::host
