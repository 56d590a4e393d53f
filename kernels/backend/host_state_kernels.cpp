// The operations on state, without the products of layers. A library that links these alone needs
// no oneDNN.
#include <cstddef>
#include <cstring>
#include <memory>

#include "kernels/host/elementwise.hpp"
#include "kernels/host/optimizer/update.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels {
namespace {

class HostStateKernels final : public StateKernels {
 public:
  explicit HostStateKernels(int threads) : parallel_(threads) {}

  void set_stream(void*) override {}
  void zero(void* data, std::uint64_t bytes) override {
    parallel_.for_blocks(static_cast<std::int64_t>(bytes), 1 << 20,
                         [data](std::int64_t begin, std::int64_t end) {
                           std::memset(static_cast<std::byte*>(data) + begin, 0,
                                       static_cast<std::size_t>(end - begin));
                         });
  }
  void accumulate(float* accumulator, const void* grad, DType grad_dtype, bool first,
                  std::int64_t elems) override {
    host::accumulate(parallel_, accumulator, grad, grad_dtype, first, elems);
  }
  void fold(void* into, const void* from, DType dtype, std::int64_t elems) override {
    host::fold(parallel_, into, from, dtype, elems);
  }
  void squared_norm_blocks(const void* grad, DType dtype, DType round_to,
                           std::span<const Block> blocks, double* partial) override {
    host::squared_norm_blocks(parallel_, grad, dtype, round_to, blocks, partial);
  }
  std::uint64_t update_workspace_bytes(const OptimizerOptions& options,
                                       std::span<const ParameterSegment> segments) const override {
    return host::update_workspace_bytes(nullptr, options, segments);
  }
  void update(const OptimizerOptions& options, const UpdateBuffers& buffers,
              std::span<const ParameterSegment> segments, const UpdateScalars& scalars,
              void* workspace) override {
    host::update(parallel_, nullptr, options, buffers, segments, scalars, workspace);
  }
  void cast(const void* in, DType in_dtype, void* out, DType out_dtype, bool weight_rounding,
            std::int64_t elems) override {
    host::cast(parallel_, in, in_dtype, out, out_dtype, weight_rounding, elems);
  }

 private:
  host::Parallel parallel_;
};

}  // namespace

std::unique_ptr<StateKernels> make_host_state_kernels(int threads) {
  return std::make_unique<HostStateKernels>(threads);
}

}  // namespace sluice::kernels
