// A backend without the operations that only ranks of a group need has these.
#include "kernels/kernels.hpp"

#include "base/error.hpp"

namespace sluice::kernels {
namespace {

[[noreturn]] void refuse() {
  throw InternalError("these kernels lack an operation of ranks that share layers or sequences");
}

}  // namespace

void Kernels::copy_columns(const void*, Columns, void*, Columns, std::int64_t, std::int64_t,
                           DType) {
  refuse();
}

std::uint64_t Kernels::attention_part_workspace_bytes(const AttentionPart&) const {
  refuse();
}

void Kernels::attention_part_forward(const AttentionPart&, const void*, const void*, bool, float*,
                                     float*, void*) {
  refuse();
}

void Kernels::attention_part_backward(const AttentionPart&, const void*, const void*, const void*,
                                      const void*, const float*, float*, float*, void*) {
  refuse();
}

void Kernels::head_statistics(const HeadShape&, const void*, const void*, const std::int32_t*,
                              const RowStatistics&, void*) {
  refuse();
}

void Kernels::head_rescale(std::int64_t, const RowStatistics&) {
  refuse();
}

void Kernels::head_loss(std::int64_t, const RowStatistics&, double*, float*) {
  refuse();
}

void Kernels::head_input_gradient(const HeadShape&, const void*, const void*, const std::int32_t*,
                                  float, const float*, void*, void*) {
  refuse();
}

}  // namespace sluice::kernels
