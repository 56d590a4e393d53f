// The arrays of an optimizer step as adam_traffic sees them, and which are read and written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/block8.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::bench {

// An array of the update. elem_bytes: 1 for 8-bit blocks, without their scales.
struct TrafficStream {
  std::byte* data = nullptr;
  std::int64_t elem_bytes = 0;
  bool read = false;
  bool write = false;
  bool block8 = false;

  std::byte* at(std::int64_t i) const {
    if (!block8) return data + i * elem_bytes;
    const auto elem = static_cast<std::uint64_t>(i);
    return data + kernels::block8_place(elem / kBlock8Elems).code_bytes + elem % kBlock8Elems;
  }
};

struct TrafficStreams {
  std::array<TrafficStream, 5> all;
  std::size_t count = 0;

  void add(const void* data, DType type, bool read, bool write) {
    auto* const bytes = const_cast<std::byte*>(static_cast<const std::byte*>(data));
    const bool block8 = type == DType::kBlock8;
    const auto elem_bytes = block8 ? 1 : static_cast<std::int64_t>(dtype_bytes(type));
    all[count++] = {bytes, elem_bytes, read, write, block8};
  }
};

inline TrafficStreams traffic_streams(const kernels::OptimizerOptions& options,
                                      const kernels::UpdateBuffers& buffers) {
  TrafficStreams streams;
  streams.add(buffers.grad, buffers.grad_dtype, true, false);
  const auto state = [&](StateKind kind, const void* data) {
    const kernels::StateLayout layout = kernels::state_layout(options, kind);
    if (layout.extent == kernels::StateExtent::kPerElement)
      streams.add(data, layout.dtype, true, true);
  };
  state(StateKind::kMaster, buffers.master);
  state(StateKind::kMoment1, buffers.moment1);
  state(StateKind::kMoment2, buffers.moment2);
  streams.add(buffers.weight, options.weight, kernels::reads_weight(options), true);
  return streams;
}

}  // namespace sluice::bench
