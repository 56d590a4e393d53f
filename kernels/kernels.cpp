// A backend without the steps of a head that ranks share has these.
#include "kernels/kernels.hpp"

#include "base/error.hpp"

namespace sluice::kernels {
namespace {

[[noreturn]] void refuse() {
  throw InternalError("these kernels have no head that ranks share");
}

}  // namespace

void Kernels::copy_columns(const void*, Columns, void*, Columns, std::int64_t, std::int64_t,
                           DType) {
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
