// The host's kernels as a CUDA device runs kernels: queued on the stream, carried out later.
//
// Over the simulated driver (tests/support/cuda_driver) they work on its device memory. Host
// arguments of a call (blocks, segments, scalars) are copied when it is made, as a launch does;
// everything else is read when the stream comes to it.
#pragma once

#include <dlfcn.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "kernels/kernels.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::testing {

class StreamedKernels final : public kernels::Kernels {
 public:
  explicit StreamedKernels(std::unique_ptr<kernels::Kernels> inner) : inner_(std::move(inner)) {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    SLUICE_CHECK(library != nullptr);
    launch_ = reinterpret_cast<decltype(launch_)>(::dlsym(library, "cuLaunchHostFunc"));
    SLUICE_CHECK(launch_ != nullptr);
  }

  void set_stream(void* native) override { stream_ = native; }
  const char* arithmetic() const override { return inner_->arithmetic(); }

  std::uint64_t gemm_workspace_bytes(const kernels::GemmShape& shape) const override {
    return inner_->gemm_workspace_bytes(shape);
  }
  void gemm(const kernels::GemmShape& shape, const void* a, const void* b, const void* bias,
            void* c, void* workspace) override {
    queue([=, this] { inner_->gemm(shape, a, b, bias, c, workspace); });
  }
  void zero(void* data, std::uint64_t bytes) override {
    queue([=, this] { inner_->zero(data, bytes); });
  }
  void column_sum(const void* x, void* out, std::int64_t rows, std::int64_t cols,
                  DType dtype) override {
    queue([=, this] { inner_->column_sum(x, out, rows, cols, dtype); });
  }
  void norm_forward(const kernels::NormShape& shape, const void* x, const void* weight,
                    const void* bias, void* y, float* mean, float* rstd) override {
    queue([=, this] { inner_->norm_forward(shape, x, weight, bias, y, mean, rstd); });
  }
  void norm_backward_input(const kernels::NormShape& shape, const void* dy, const void* x,
                           const void* weight, const float* mean, const float* rstd,
                           const void* residual, void* dx) override {
    queue(
        [=, this] { inner_->norm_backward_input(shape, dy, x, weight, mean, rstd, residual, dx); });
  }
  void norm_backward_weight(const kernels::NormShape& shape, const void* dy, const void* x,
                            const float* mean, const float* rstd, void* dweight,
                            void* dbias) override {
    queue([=, this] { inner_->norm_backward_weight(shape, dy, x, mean, rstd, dweight, dbias); });
  }
  void add(const void* a, const void* b, void* out, std::int64_t elems, DType dtype) override {
    queue([=, this] { inner_->add(a, b, out, elems, dtype); });
  }
  void gelu_forward(const void* x, void* y, std::int64_t elems, DType dtype) override {
    queue([=, this] { inner_->gelu_forward(x, y, elems, dtype); });
  }
  void gelu_backward(const void* dy, const void* x, void* dx, std::int64_t elems,
                     DType dtype) override {
    queue([=, this] { inner_->gelu_backward(dy, x, dx, elems, dtype); });
  }
  void swiglu_forward(const void* x, void* y, std::int64_t rows, std::int64_t cols,
                      DType dtype) override {
    queue([=, this] { inner_->swiglu_forward(x, y, rows, cols, dtype); });
  }
  void swiglu_backward(const void* dy, const void* x, void* dx, std::int64_t rows,
                       std::int64_t cols, DType dtype) override {
    queue([=, this] { inner_->swiglu_backward(dy, x, dx, rows, cols, dtype); });
  }
  void rope(const kernels::AttentionShape& shape, float base, bool inverse, void* qkv) override {
    queue([=, this] { inner_->rope(shape, base, inverse, qkv); });
  }
  std::uint64_t attention_workspace_bytes(const kernels::AttentionShape& shape) const override {
    return inner_->attention_workspace_bytes(shape);
  }
  void attention_forward(const kernels::AttentionShape& shape, const void* qkv, void* out,
                         float* lse, void* workspace) override {
    queue([=, this] { inner_->attention_forward(shape, qkv, out, lse, workspace); });
  }
  void attention_backward(const kernels::AttentionShape& shape, const void* dout, const void* qkv,
                          const void* out, const float* lse, void* dqkv, void* workspace) override {
    queue([=, this] { inner_->attention_backward(shape, dout, qkv, out, lse, dqkv, workspace); });
  }
  void copy_columns(const void* in, Columns from, void* out, Columns to, std::int64_t rows,
                    std::int64_t cols, DType dtype) override {
    queue([=, this] { inner_->copy_columns(in, from, out, to, rows, cols, dtype); });
  }
  void embedding_forward(const std::int32_t* tokens, kernels::TokenRange range, const void* table,
                         const void* positions, void* out, std::int64_t rows, std::int64_t time,
                         std::int64_t hidden, DType dtype) override {
    queue([=, this] {
      inner_->embedding_forward(tokens, range, table, positions, out, rows, time, hidden, dtype);
    });
  }
  std::uint64_t embedding_backward_workspace_bytes(std::int64_t rows,
                                                   std::int64_t vocab) const override {
    return inner_->embedding_backward_workspace_bytes(rows, vocab);
  }
  void embedding_backward(const std::int32_t* tokens, kernels::TokenRange range, const void* dout,
                          void* dtable, void* dpositions, std::int64_t rows, std::int64_t time,
                          std::int64_t max_time, std::int64_t hidden, DType dtype,
                          void* workspace) override {
    queue([=, this] {
      inner_->embedding_backward(tokens, range, dout, dtable, dpositions, rows, time, max_time,
                                 hidden, dtype, workspace);
    });
  }
  std::uint64_t head_workspace_bytes(const kernels::HeadShape& shape) const override {
    return inner_->head_workspace_bytes(shape);
  }
  void head_forward(const kernels::HeadShape& shape, const void* x, const void* w,
                    const std::int32_t* targets, float loss_scale, double* loss_sum, float* lse,
                    void* dx, void* workspace) override {
    queue([=, this] {
      inner_->head_forward(shape, x, w, targets, loss_scale, loss_sum, lse, dx, workspace);
    });
  }
  void head_backward_weight(const kernels::HeadShape& shape, const void* x, const void* w,
                            const std::int32_t* targets, float loss_scale, const float* lse,
                            void* dw, void* workspace) override {
    queue([=, this] {
      inner_->head_backward_weight(shape, x, w, targets, loss_scale, lse, dw, workspace);
    });
  }
  void accumulate(float* accumulator, const void* grad, DType grad_dtype, bool first,
                  std::int64_t elems) override {
    queue([=, this] { inner_->accumulate(accumulator, grad, grad_dtype, first, elems); });
  }
  void fold(void* into, const void* from, DType dtype, std::int64_t elems) override {
    queue([=, this] { inner_->fold(into, from, dtype, elems); });
  }
  void squared_norm_blocks(const void* grad, DType dtype, DType round_to,
                           std::span<const Block> blocks, double* partial) override {
    queue([=, this, kept = std::vector<Block>(blocks.begin(), blocks.end())] {
      inner_->squared_norm_blocks(grad, dtype, round_to, kept, partial);
    });
  }
  std::uint64_t update_workspace_bytes(
      const kernels::OptimizerOptions& options,
      std::span<const kernels::ParameterSegment> segments) const override {
    return inner_->update_workspace_bytes(options, segments);
  }
  void update(const kernels::OptimizerOptions& options, const kernels::UpdateBuffers& buffers,
              std::span<const kernels::ParameterSegment> segments,
              const kernels::UpdateScalars& scalars, void* workspace) override {
    queue(
        [=, this, kept = std::vector<kernels::ParameterSegment>(segments.begin(), segments.end())] {
          inner_->update(options, buffers, kept, scalars, workspace);
        });
  }
  void cast(const void* in, DType in_dtype, void* out, DType out_dtype, bool weight_rounding,
            std::int64_t elems) override {
    queue([=, this] { inner_->cast(in, in_dtype, out, out_dtype, weight_rounding, elems); });
  }

 private:
  using Work = std::function<void()>;
  void queue(Work work) {
    auto held = std::make_unique<Work>(std::move(work));
    const auto run = [](void* data) { (*std::unique_ptr<Work>(static_cast<Work*>(data)))(); };
    if (launch_(stream_, run, held.get()) != 0) throw DeviceError("a launch was refused");
    held.release();  // NOLINT(bugprone-unused-return-value): the stream's now
  }

  std::unique_ptr<kernels::Kernels> inner_;
  void* stream_ = nullptr;
  int (*launch_)(void* stream, void (*function)(void*), void* data) = nullptr;
};

}  // namespace sluice::testing
