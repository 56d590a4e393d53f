// Forwards each operation to its family in kernels/host, with the team of threads and the GEMM.
#include "kernels/backend/host_kernels.hpp"

#include <cstddef>
#include <cstring>

#include "kernels/host/activations.hpp"
#include "kernels/host/attention.hpp"
#include "kernels/host/attention_part.hpp"
#include "kernels/host/elementwise.hpp"
#include "kernels/host/embedding.hpp"
#include "kernels/host/head.hpp"
#include "kernels/host/norm.hpp"
#include "kernels/host/onednn.hpp"
#include "kernels/host/optimizer/update.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::kernels {
namespace host {

HostKernels::HostKernels(const HostKernelOptions& options)
    : parallel_(options.threads),
      gemm_(parallel_, options.bf16_gemm),
      arithmetic_(kernels::host::onednn_version_and_isa() +
                  (gemm_.native_bf16() ? "/bf16" : "/f32")) {}

void HostKernels::set_stream(void* /*native*/) {}

const char* HostKernels::arithmetic() const {
  return arithmetic_.c_str();
}

std::uint64_t HostKernels::gemm_workspace_bytes(const GemmShape& shape) const {
  return gemm_.workspace_bytes(
      kernels::host::product_of(shape, nullptr, nullptr, nullptr, nullptr));
}

void HostKernels::gemm(const GemmShape& shape, const void* a, const void* b, const void* bias,
                       void* c, void* workspace) {
  gemm_.run(kernels::host::product_of(shape, a, b, bias, c), workspace);
}

void HostKernels::zero(void* data, std::uint64_t bytes) {
  parallel_.for_blocks(static_cast<std::int64_t>(bytes), 1 << 20,
                       [data](std::int64_t begin, std::int64_t end) {
                         std::memset(static_cast<std::byte*>(data) + begin, 0,
                                     static_cast<std::size_t>(end - begin));
                       });
}

void HostKernels::column_sum(const void* x, void* out, std::int64_t rows, std::int64_t cols,
                             DType dtype) {
  host::column_sum(parallel_, x, out, rows, cols, dtype);
}

void HostKernels::norm_forward(const NormShape& shape, const void* x, const void* weight,
                               const void* bias, void* y, float* mean, float* rstd) {
  host::norm_forward(parallel_, shape, x, weight, bias, y, mean, rstd);
}

void HostKernels::norm_backward_input(const NormShape& shape, const void* dy, const void* x,
                                      const void* weight, const float* mean, const float* rstd,
                                      const void* residual, void* dx) {
  host::norm_backward_input(parallel_, shape, dy, x, weight, mean, rstd, residual, dx);
}

void HostKernels::norm_backward_weight(const NormShape& shape, const void* dy, const void* x,
                                       const float* mean, const float* rstd, void* dweight,
                                       void* dbias) {
  host::norm_backward_weight(parallel_, shape, dy, x, mean, rstd, dweight, dbias);
}

void HostKernels::add(const void* a, const void* b, void* out, std::int64_t elems, DType dtype) {
  host::add(parallel_, a, b, out, elems, dtype);
}

void HostKernels::gelu_forward(const void* x, void* y, std::int64_t elems, DType dtype) {
  host::gelu_forward(parallel_, x, y, elems, dtype);
}

void HostKernels::gelu_backward(const void* dy, const void* x, void* dx, std::int64_t elems,
                                DType dtype) {
  host::gelu_backward(parallel_, dy, x, dx, elems, dtype);
}

void HostKernels::swiglu_forward(const void* x, void* y, std::int64_t rows, std::int64_t cols,
                                 DType dtype) {
  host::swiglu_forward(parallel_, x, y, rows, cols, dtype);
}

void HostKernels::swiglu_backward(const void* dy, const void* x, void* dx, std::int64_t rows,
                                  std::int64_t cols, DType dtype) {
  host::swiglu_backward(parallel_, dy, x, dx, rows, cols, dtype);
}

void HostKernels::rope(const AttentionShape& shape, float base, bool inverse, void* qkv) {
  host::rope(parallel_, shape, base, inverse, qkv);
}

std::uint64_t HostKernels::attention_workspace_bytes(const AttentionShape& shape) const {
  return host::attention_workspace_bytes(parallel_, shape);
}

void HostKernels::attention_forward(const AttentionShape& shape, const void* qkv, void* out,
                                    float* lse, void* workspace) {
  host::attention_forward(parallel_, shape, qkv, out, lse, workspace);
}

void HostKernels::attention_backward(const AttentionShape& shape, const void* dout, const void* qkv,
                                     const void* out, const float* lse, void* dqkv,
                                     void* workspace) {
  host::attention_backward(parallel_, shape, dout, qkv, out, lse, dqkv, workspace);
}

std::uint64_t HostKernels::attention_part_workspace_bytes(const AttentionPart& part) const {
  return host::attention_part_workspace_bytes(parallel_, part);
}

void HostKernels::attention_part_forward(const AttentionPart& part, const void* qkv, const void* kv,
                                         bool first, float* out, float* lse, void* workspace) {
  host::attention_part_forward(parallel_, part, qkv, kv, first, out, lse, workspace);
}

void HostKernels::attention_part_backward(const AttentionPart& part, const void* dout,
                                          const void* qkv, const void* kv, const void* out,
                                          const float* lse, float* dq, float* dkv,
                                          void* workspace) {
  host::attention_part_backward(parallel_, part, dout, qkv, kv, out, lse, dq, dkv, workspace);
}

void HostKernels::embedding_forward(const std::int32_t* tokens, TokenRange range, const void* table,
                                    const void* positions, void* out, std::int64_t rows,
                                    std::int64_t time, std::int64_t hidden, DType dtype) {
  host::embedding_forward(parallel_, tokens, range, table, positions, out, rows, time, hidden,
                          dtype);
}

std::uint64_t HostKernels::embedding_backward_workspace_bytes(std::int64_t rows,
                                                              std::int64_t vocab) const {
  return host::embedding_backward_workspace_bytes(rows, vocab);
}

void HostKernels::embedding_backward(const std::int32_t* tokens, TokenRange range, const void* dout,
                                     void* dtable, void* dpositions, std::int64_t rows,
                                     std::int64_t time, std::int64_t max_time, std::int64_t hidden,
                                     DType dtype, void* workspace) {
  host::embedding_backward(parallel_, tokens, range, dout, dtable, dpositions, rows, time, max_time,
                           hidden, dtype, workspace);
}

std::uint64_t HostKernels::head_workspace_bytes(const HeadShape& shape) const {
  return host::head_workspace_bytes(gemm_, shape);
}

void HostKernels::head_forward(const HeadShape& shape, const void* x, const void* w,
                               const std::int32_t* targets, float loss_scale, double* loss_sum,
                               float* lse, void* dx, void* workspace) {
  host::head_forward(parallel_, gemm_, shape, x, w, targets, loss_scale, loss_sum, lse, dx,
                     workspace);
}

void HostKernels::head_backward_weight(const HeadShape& shape, const void* x, const void* w,
                                       const std::int32_t* targets, float loss_scale,
                                       const float* lse, void* dw, void* workspace) {
  host::head_backward_weight(parallel_, gemm_, shape, x, w, targets, loss_scale, lse, dw,
                             workspace);
}

void HostKernels::head_statistics(const HeadShape& shape, const void* x, const void* w,
                                  const std::int32_t* targets, const RowStatistics& statistics,
                                  void* workspace) {
  host::head_statistics(parallel_, gemm_, shape, x, w, targets, statistics, workspace);
}

void HostKernels::copy_columns(const void* in, Columns from, void* out, Columns to,
                               std::int64_t rows, std::int64_t cols, DType dtype) {
  const auto bytes = [&](std::int64_t elems) {
    return static_cast<std::size_t>(elems) * dtype_bytes(dtype);
  };
  const auto* source = static_cast<const std::byte*>(in) + bytes(from.first);
  auto* target = static_cast<std::byte*>(out) + bytes(to.first);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memcpy(target + bytes(row * to.width), source + bytes(row * from.width), bytes(cols));
  }
}

void HostKernels::head_rescale(std::int64_t rows, const RowStatistics& statistics) {
  host::head_rescale(rows, statistics);
}

void HostKernels::head_loss(std::int64_t rows, const RowStatistics& statistics, double* loss_sum,
                            float* lse) {
  host::head_loss(rows, statistics, loss_sum, lse);
}

void HostKernels::head_input_gradient(const HeadShape& shape, const void* x, const void* w,
                                      const std::int32_t* targets, float loss_scale,
                                      const float* lse, void* dx, void* workspace) {
  host::head_input_gradient(parallel_, gemm_, shape, x, w, targets, loss_scale, lse, dx, workspace);
}

void HostKernels::accumulate(float* accumulator, const void* grad, DType grad_dtype, bool first,
                             std::int64_t elems) {
  host::accumulate(parallel_, accumulator, grad, grad_dtype, first, elems);
}

void HostKernels::fold(void* into, const void* from, DType dtype, std::int64_t elems) {
  host::fold(parallel_, into, from, dtype, elems);
}

void HostKernels::squared_norm_blocks(const void* grad, DType dtype, DType round_to,
                                      std::span<const Block> blocks, double* partial) {
  host::squared_norm_blocks(parallel_, grad, dtype, round_to, blocks, partial);
}

std::uint64_t HostKernels::update_workspace_bytes(
    const OptimizerOptions& options, std::span<const ParameterSegment> segments) const {
  return host::update_workspace_bytes(&muon_, options, segments);
}

void HostKernels::update(const OptimizerOptions& options, const UpdateBuffers& buffers,
                         std::span<const ParameterSegment> segments, const UpdateScalars& scalars,
                         void* workspace) {
  host::update(parallel_, &muon_, options, buffers, segments, scalars, workspace);
}

void HostKernels::cast(const void* in, DType in_dtype, void* out, DType out_dtype,
                       bool weight_rounding, std::int64_t elems) {
  host::cast(parallel_, in, in_dtype, out, out_dtype, weight_rounding, elems);
}

}  // namespace host

std::unique_ptr<Kernels> make_host_kernels(const HostKernelOptions& options) {
  return std::make_unique<host::HostKernels>(options);
}

}  // namespace sluice::kernels
