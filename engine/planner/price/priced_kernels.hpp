// Kernels that compute nothing: each call adds its time on the described machine. A layer's pass
// that runs on them is priced call by call, so a layer need not describe its work a second time.
#pragma once

#include "engine/planner/price/hardware_profile.hpp"
#include "kernels/kernels.hpp"
#include "kernels/parameter_segment.hpp"

namespace sluice::planner {

class PricedKernels : public kernels::Kernels {
 public:
  // `hardware` must outlive it. threads: of the run's kernels, above 0 (InternalError); a profile
  // is measured on all cores.
  PricedKernels(const HardwareProfile& hardware, int threads);

  // Seconds of all calls since the last reset.
  double seconds() const { return seconds_; }
  void reset() { seconds_ = 0; }

  void set_stream(void*) override {}
  const char* arithmetic() const override { return "priced"; }

  std::uint64_t gemm_workspace_bytes(const kernels::GemmShape&) const override { return 0; }
  void gemm(const kernels::GemmShape& shape, const void* a, const void* b, const void* bias,
            void* c, void* workspace) override;
  void zero(void* data, std::uint64_t bytes) override;
  void column_sum(const void* x, void* out, std::int64_t rows, std::int64_t cols,
                  DType dtype) override;
  void norm_forward(const kernels::NormShape& shape, const void* x, const void* weight,
                    const void* bias, void* y, float* mean, float* rstd) override;
  void norm_backward_input(const kernels::NormShape& shape, const void* dy, const void* x,
                           const void* weight, const float* mean, const float* rstd,
                           const void* residual, void* dx) override;
  void norm_backward_weight(const kernels::NormShape& shape, const void* dy, const void* x,
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
  void rope(const kernels::AttentionShape& shape, float base, bool inverse, void* qkv) override;
  std::uint64_t attention_workspace_bytes(const kernels::AttentionShape&) const override {
    return 0;
  }
  void attention_forward(const kernels::AttentionShape& shape, const void* qkv, void* out,
                         float* lse, void* workspace) override;
  void attention_backward(const kernels::AttentionShape& shape, const void* dout, const void* qkv,
                          const void* out, const float* lse, void* dqkv, void* workspace) override;
  std::uint64_t attention_part_workspace_bytes(const kernels::AttentionPart&) const override {
    return 0;
  }
  void attention_part_forward(const kernels::AttentionPart& part, const void* qkv, const void* kv,
                              bool first, float* out, float* lse, void* workspace) override;
  void attention_part_backward(const kernels::AttentionPart& part, const void* dout,
                               const void* qkv, const void* kv, const void* out, const float* lse,
                               float* dq, float* dkv, void* workspace) override;
  void embedding_forward(const std::int32_t* tokens, kernels::TokenRange range, const void* table,
                         const void* positions, void* out, std::int64_t rows, std::int64_t time,
                         std::int64_t hidden, DType dtype) override;
  std::uint64_t embedding_backward_workspace_bytes(std::int64_t, std::int64_t) const override {
    return 0;
  }
  void embedding_backward(const std::int32_t* tokens, kernels::TokenRange range, const void* dout,
                          void* dtable, void* dpositions, std::int64_t rows, std::int64_t time,
                          std::int64_t max_time, std::int64_t hidden, DType dtype,
                          void* workspace) override;
  std::uint64_t head_workspace_bytes(const kernels::HeadShape&) const override { return 0; }
  void head_forward(const kernels::HeadShape& shape, const void* x, const void* w,
                    const std::int32_t* targets, float loss_scale, double* loss_sum, float* lse,
                    void* dx, void* workspace) override;
  void head_backward_weight(const kernels::HeadShape& shape, const void* x, const void* w,
                            const std::int32_t* targets, float loss_scale, const float* lse,
                            void* dw, void* workspace) override;
  void head_statistics(const kernels::HeadShape& shape, const void* x, const void* w,
                       const std::int32_t* targets, const kernels::RowStatistics& statistics,
                       void* workspace) override;
  void copy_columns(const void*, Columns, void*, Columns, std::int64_t rows, std::int64_t cols,
                    DType dtype) override;
  void head_rescale(std::int64_t rows, const kernels::RowStatistics& statistics) override;
  void head_loss(std::int64_t rows, const kernels::RowStatistics& statistics, double* loss_sum,
                 float* lse) override;
  void head_input_gradient(const kernels::HeadShape& shape, const void* x, const void* w,
                           const std::int32_t* targets, float loss_scale, const float* lse,
                           void* dx, void* workspace) override;
  void accumulate(float* accumulator, const void* grad, DType grad_dtype, bool first,
                  std::int64_t elems) override;
  void fold(void* into, const void* from, DType dtype, std::int64_t elems) override;
  void squared_norm_blocks(const void* grad, DType dtype, DType round_to,
                           std::span<const Block> blocks, double* partial) override;
  std::uint64_t update_workspace_bytes(const kernels::OptimizerOptions&,
                                       std::span<const kernels::ParameterSegment>) const override {
    return 0;
  }
  void update(const kernels::OptimizerOptions& options, const kernels::UpdateBuffers& buffers,
              std::span<const kernels::ParameterSegment> segments,
              const kernels::UpdateScalars& scalars, void* workspace) override;
  void cast(const void* in, DType in_dtype, void* out, DType out_dtype, bool weight_rounding,
            std::int64_t elems) override;

 private:
  // Adds the time from the operation's grid; without a grid, `plain_s`.
  // share: of the operation.
  void charge(TimedOperation operation, DType dtype, const OperationSize& size, double plain_s,
              double share = 1);
  void charge_elems(TimedOperation operation, DType dtype, std::int64_t elems,
                    double bytes_per_elem);
  void charge_attention(TimedOperation operation, DType dtype, const OperationSize& size,
                        double flops);
  void charge_plain(double seconds) { seconds_ += seconds * slowdown_; }
  // Seconds at the machine's plain rates.
  double product_s(double flops, DType dtype) const;
  double stream_s(double bytes) const;
  double plain_head_s(const OperationSize& size, DType dtype) const;

  const HardwareProfile& hardware_;
  double slowdown_ = 1;
  double seconds_ = 0;
};

}  // namespace sluice::planner
