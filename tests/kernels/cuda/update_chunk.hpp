// One chunk's gradient, weight and states as bytes, updated by the host's kernels or by a GPU's,
// and compared to the bit.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/block8.hpp"
#include "kernels/cuda/gemm_plain.hpp"
#include "kernels/cuda/optimizer/update.hpp"
#include "kernels/kernels.hpp"
#include "kernels/split_master.hpp"
#include "tests/kernels/cuda/device_array.hpp"
#include "tests/support/dtype_array.hpp"

namespace sluice::kernels::cuda {

struct UpdateFormats {
  OptimizerOptions options;
  DType grad = DType::kF32;
  DType round_grad_to = DType::kF32;
};

inline std::string format_name(const UpdateFormats& formats) {
  const OptimizerOptions& options = formats.options;
  std::string name(optimizer_rule_name(options.rule));
  name += "_" + std::string(dtype_name(formats.grad));
  if (formats.round_grad_to != DType::kF32) name += "Rounded";
  name += "_" + std::string(dtype_name(options.weight)) + (options.split_master ? "Split" : "");
  return name + "_" + std::string(dtype_name(options.moments));
}

// Every format of weight, gradient and, where `moments`, of moments.
inline std::vector<UpdateFormats> all_formats(const OptimizerOptions& rule, bool moments) {
  struct Weight {
    DType dtype;
    bool split;
  };
  struct Grad {
    DType dtype, round_to;
  };
  const std::vector<DType> moment_types =
      moments ? std::vector<DType>{DType::kF32, DType::kBF16, DType::kBlock8}
              : std::vector<DType>{DType::kF32};
  std::vector<UpdateFormats> all;
  for (const Weight weight : {Weight{DType::kF32, false},
                              {DType::kBF16, false},
                              {DType::kBF16, true},
                              {DType::kF16, false}}) {
    const DType half = weight.dtype == DType::kF16 ? DType::kF16 : DType::kBF16;
    for (const Grad grad :
         {Grad{half, DType::kF32}, {DType::kF32, DType::kF32}, {DType::kF32, half}}) {
      for (const DType type : moment_types) {
        UpdateFormats formats{rule, grad.dtype, grad.round_to};
        formats.options.weight = weight.dtype;
        formats.options.split_master = weight.split;
        formats.options.moments = type;
        all.push_back(formats);
      }
    }
  }
  return all;
}

using Bytes = std::vector<std::uint8_t>;

// Numbers as they are stored; NaNs with any payload are alike.
inline bool same_number(DType type, const std::uint8_t* a, const std::uint8_t* b) {
  const std::size_t bytes = dtype_bytes(type);
  if (std::memcmp(a, b, bytes) == 0) return true;
  const auto is_nan = [&](const std::uint8_t* number) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, number, bytes);
    if (type == DType::kF32) return (bits & 0x7fffffffu) > 0x7f800000u;
    if (type == DType::kBF16) return (bits & 0x7fffu) > 0x7f80u;
    return type == DType::kF16 && (bits & 0x7fffu) > 0x7c00u;
  };
  return is_nan(a) && is_nan(b);
}

class UpdateChunk {
 public:
  // states: all zeros, outside the segments for good.
  UpdateChunk(const UpdateFormats& of, std::int64_t count, std::uint64_t tensor_elems = 0)
      : formats(of), elems(count) {
    const auto bytes = [&](DType type) {
      return Bytes(bytes_of(type, static_cast<std::uint64_t>(count)));
    };
    const auto state = [&](StateKind kind) {
      const StateLayout layout = state_layout(of.options, kind);
      if (layout.extent == StateExtent::kAbsent) return Bytes();
      if (layout.extent == StateExtent::kPerTensor) return Bytes(4 * tensor_elems);
      return bytes(layout.dtype);
    };
    grad = bytes(of.grad);
    weight = bytes(of.options.weight);
    master = state(StateKind::kMaster);
    moment1 = state(StateKind::kMoment1);
    moment2 = state(StateKind::kMoment2);
  }

  void set_grad(const std::vector<float>& values) {
    const host::DTypeArray stored(formats.grad, values);
    std::memcpy(grad.data(), stored.data(), grad.size());
  }
  void set_weights(const std::vector<float>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const SplitMaster split = split_master(values[i]);
      const f16 half = f16_from_float(values[i]);
      if (formats.options.weight == DType::kF16) put(weight, i, half);
      if (formats.options.weight == DType::kBF16) put(weight, i, split.weight);
      if (formats.options.split_master) {
        put(master, i, split.remainder);
      } else {
        put(formats.options.has_master() ? master : weight, i, values[i]);
      }
    }
  }
  void set_moments(const std::vector<float>& first, const std::vector<float>& second) {
    set_moment(moment1, Block8Map::kMoment1, first);
    if (state_layout(formats.options, StateKind::kMoment2).extent == StateExtent::kPerElement) {
      set_moment(moment2, Block8Map::kMoment2, second);
    }
  }

  // The buffers in host memory.
  UpdateBuffers buffers() {
    return buffers_of(grad.data(), data_or_null(weight), data_or_null(master),
                      data_or_null(moment1), data_or_null(moment2));
  }
  UpdateBuffers buffers_of(void* of_grad, void* of_weight, void* of_master, void* of_moment1,
                           void* of_moment2) const {
    UpdateBuffers all;
    all.grad = of_grad;
    all.grad_dtype = formats.grad;
    all.round_grad_to = formats.round_grad_to;
    all.weight = of_weight;
    all.master = of_master;
    all.moment1 = of_moment1;
    all.moment2 = of_moment2;
    all.elems = elems;
    return all;
  }

  void update_on_host(Kernels& kernels, std::span<const ParameterSegment> segments,
                      const UpdateScalars& scalars) {
    Bytes room(kernels.update_workspace_bytes(formats.options, segments) + 256);
    void* workspace = room.data();
    std::size_t space = room.size();
    std::align(256, 1, workspace, space);
    kernels.update(formats.options, buffers(), segments, scalars, workspace);
  }

  // Copies through the device, at addresses `offset` elements past alignment. The workspace is full
  // of NaNs at first.
  void update_on_device(GemmBackend& gemm, std::span<const ParameterSegment> segments,
                        const UpdateScalars& scalars) {
    DeviceBytes on_grad(grad.data(), grad.size()), on_weight(weight.data(), weight.size());
    DeviceBytes on_master(master.data(), master.size());
    DeviceBytes on_moment1(moment1.data(), moment1.size());
    DeviceBytes on_moment2(moment2.data(), moment2.size());
    DeviceBytes workspace(update_workspace_bytes(gemm, formats.options, segments));
    const auto data = [](DeviceBytes& bytes) { return bytes.size() == 0 ? nullptr : bytes.data(); };
    update(nullptr, gemm, formats.options,
           buffers_of(on_grad.data(), on_weight.data(), data(on_master), data(on_moment1),
                      data(on_moment2)),
           segments, scalars, data(workspace));
    on_weight.read(weight.data());
    on_master.read(master.data());
    on_moment1.read(moment1.data());
    on_moment2.read(moment2.data());
  }

  void expect_same(const UpdateChunk& want) const {
    const OptimizerOptions& options = formats.options;
    expect_same(options.weight, weight, want.weight, "weight");
    if (!options.split_master) expect_same(DType::kF32, master, want.master, "master");
    for (std::size_t i = 0; options.split_master && i < master.size() / 2; ++i) {
      // The remainder of a NaN has no meaning.
      const bool is_nan = (weight[2 * i + 1] & 0x7f) == 0x7f && weight[2 * i] > 0x80;
      if (is_nan || std::memcmp(&master[2 * i], &want.master[2 * i], 2) == 0) continue;
      FAIL() << "remainder of element " << i;
    }
    expect_same(options.moments, moment1, want.moment1, "moment1");
    const StateLayout second = state_layout(options, StateKind::kMoment2);
    expect_same(second.dtype, moment2, want.moment2, "moment2");
  }

  UpdateFormats formats;
  std::int64_t elems;
  Bytes grad, weight, master, moment1, moment2;

 private:
  template <class T>
  static void put(Bytes& bytes, std::size_t i, T value) {
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
  static void* data_or_null(Bytes& bytes) { return bytes.empty() ? nullptr : bytes.data(); }
  void set_moment(Bytes& bytes, Block8Map map, const std::vector<float>& values) {
    if (bytes.empty()) return;
    if (formats.options.moments == DType::kBlock8) {
      return block8_encode_state(map, values.data(), static_cast<std::uint64_t>(elems),
                                 bytes.data());
    }
    const host::DTypeArray stored(formats.options.moments, values);
    std::memcpy(bytes.data(), stored.data(), bytes.size());
  }
  static void expect_same(DType type, const Bytes& got, const Bytes& want, const char* what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    const std::size_t bytes = type == DType::kBlock8 ? 1 : dtype_bytes(type);
    for (std::size_t i = 0; i < got.size(); i += bytes) {
      if (got[i] == want[i] && std::memcmp(&got[i], &want[i], bytes) == 0) continue;
      if (type != DType::kBlock8 && same_number(type, &got[i], &want[i])) continue;
      FAIL() << what << ": element " << i / bytes << " of " << got.size() / bytes;
    }
  }
};

}  // namespace sluice::kernels::cuda
