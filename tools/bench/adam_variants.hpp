// The combinations of rule and formats that `sluice bench adam` measures.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/optimizer.hpp"

namespace sluice::kernels::host {
class Parallel;
}

namespace sluice::bench {

struct AdamVariant {
  std::string_view name;  // "split_bf16"
  std::string_view what;  // for people
  kernels::OptimizerOptions options;
  DType grad = DType::kBF16;
  DType round_grad_to = DType::kF32;
};

std::span<const AdamVariant> adam_variants();

// One variant's arrays, each in its own memory, on huge pages if the system has them (as pinned
// memory is). The threads that will work on the arrays touch them first.
class AdamVariantStep {
 public:
  // Throws std::bad_alloc.
  AdamVariantStep(const kernels::host::Parallel& parallel, const AdamVariant& variant,
                  std::int64_t elems);

  // Seconds of one update, and of its unavoidable memory traffic (adam_traffic.hpp).
  double update_seconds();
  double traffic_seconds();

  double bytes_per_param() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Array = std::unique_ptr<std::byte, Free>;
  Array array(DType dtype);

  const kernels::host::Parallel& parallel_;
  AdamVariant variant_;
  std::int64_t elems_;
  Array grad_, weight_, master_, moment1_, moment2_;
  kernels::UpdateBuffers buffers_;
  kernels::UpdateScalars scalars_;
};

}  // namespace sluice::bench
