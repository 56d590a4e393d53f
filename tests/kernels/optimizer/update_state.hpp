// One chunk's gradient, weight and states in any format, for the suites of optimizers: seen as fp32
// numbers through the scalar codecs, and updated by Kernels' code or by scalar code.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "kernels/block8.hpp"
#include "kernels/host/gemm.hpp"
#include "kernels/host/optimizer/update.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/split_master.hpp"
#include "kernels/stochastic_rounding.hpp"
#include "tests/support/dtype_array.hpp"

namespace sluice::kernels::host {

struct UpdateFormats {
  OptimizerOptions options;
  DType grad = DType::kBF16;
  DType round_grad_to = DType::kF32;
};

inline std::string rule_name(const OptimizerOptions& options) {
  std::string name(optimizer_rule_name(options.rule));
  if (options.rule == OptimizerRule::kSgd) {
    name += options.momentum == 0 ? "Plain" : options.nesterov ? "Nesterov" : "Momentum";
  }
  return name;
}

inline std::string format_name(const UpdateFormats& formats) {
  const OptimizerOptions& options = formats.options;
  std::string name = rule_name(options);
  name += "_" + std::string(dtype_name(formats.grad));
  if (formats.round_grad_to != DType::kF32) name += "Rounded";
  name += "_" + std::string(dtype_name(options.weight)) + (options.split_master ? "Split" : "");
  return name + "_" + std::string(dtype_name(options.moments));
}

// A state's bytes, with guards behind them.
class StateBytes {
 public:
  StateBytes() = default;
  StateBytes(const StateLayout& layout, std::int64_t elems)
      : layout_(layout),
        bytes_(layout.extent == StateExtent::kAbsent
                   ? 0
                   : bytes_of(layout.dtype, static_cast<std::uint64_t>(elems)) + kGuards) {}

  void* data() { return bytes_.empty() ? nullptr : bytes_.data(); }
  bool empty() const { return bytes_.empty(); }
  DType dtype() const { return layout_.dtype; }
  bool operator==(const StateBytes& other) const { return bytes_ == other.bytes_; }

 private:
  static constexpr std::size_t kGuards = 64;
  StateLayout layout_;
  std::vector<std::uint8_t> bytes_;
};

class UpdateState {
 public:
  UpdateState(const UpdateFormats& formats, std::int64_t elems)
      : formats_(formats),
        elems_(elems),
        weight_({StateExtent::kPerElement, formats.options.weight}, elems),
        master_(state_layout(formats.options, StateKind::kMaster), elems),
        moment1_(state_layout(formats.options, StateKind::kMoment1), elems),
        moment2_(state_layout(formats.options, StateKind::kMoment2), elems) {}

  bool operator==(const UpdateState& other) const {
    return weight_ == other.weight_ && master_ == other.master_ && moment1_ == other.moment1_ &&
           moment2_ == other.moment2_;
  }

  // The number that the rule updates, in fp32.
  float number(std::int64_t i) {
    if (!formats_.options.split_master) return at<float>(alone() ? weight_ : master_, i);
    return join_master({at<bf16>(weight_, i), at<std::int16_t>(master_, i)});
  }
  void set_number(std::int64_t i, float value) {
    if (formats_.options.split_master) {
      const SplitMaster split = split_master(value);
      at<bf16>(weight_, i) = split.weight;
      at<std::int16_t>(master_, i) = split.remainder;
      return;
    }
    at<float>(alone() ? weight_ : master_, i) = value;
    if (formats_.options.weight == DType::kBF16) {
      at<bf16>(weight_, i) = bf16_weight_from_float(value);
    } else if (formats_.options.weight == DType::kF16) {
      at<f16>(weight_, i) = f16_from_float(value);
    }
  }
  float weight(std::int64_t i) {
    if (formats_.options.weight == DType::kF16) return to_float(at<f16>(weight_, i));
    return alone() ? at<float>(weight_, i) : to_float(at<bf16>(weight_, i));
  }

  bool has_moment(int moment) { return !moment_bytes(moment).empty(); }
  // All elements' moment 1 or 2. Absent: zeros.
  std::vector<float> moment(int moment) {
    std::vector<float> values(static_cast<std::size_t>(elems_));
    StateBytes& bytes = moment_bytes(moment);
    if (bytes.empty()) return values;
    if (bytes.dtype() == DType::kBlock8) {
      block8_decode_state(map(moment), bytes.data(), static_cast<std::uint64_t>(elems_),
                          values.data());
      return values;
    }
    for (std::int64_t i = 0; i < elems_; ++i) {
      values[static_cast<std::size_t>(i)] =
          bytes.dtype() == DType::kF32 ? at<float>(bytes, i) : to_float(at<bf16>(bytes, i));
    }
    return values;
  }
  // noise(i): 16 bits for element i (bf16 moments).
  template <class Noise>
  void set_moment(int moment, const std::vector<float>& values, const Noise& noise) {
    StateBytes& bytes = moment_bytes(moment);
    if (bytes.empty()) return;
    if (bytes.dtype() == DType::kBlock8) {
      block8_encode_state(map(moment), values.data(), static_cast<std::uint64_t>(elems_),
                          bytes.data());
      return;
    }
    for (std::int64_t i = 0; i < elems_; ++i) {
      const float value = values[static_cast<std::size_t>(i)];
      if (bytes.dtype() == DType::kF32) {
        at<float>(bytes, i) = value;
      } else {
        at<bf16>(bytes, i) = bf16_stochastic(value, noise(i));
      }
    }
  }

  // Buffers of `elems` elements from `from` on (kBlock8: a multiple of 4,096).
  UpdateBuffers buffers(const DTypeArray& grad, std::int64_t from, std::int64_t elems) {
    const auto place = [&](StateBytes& bytes) -> void* {
      if (bytes.empty()) return nullptr;
      return static_cast<std::byte*>(bytes.data()) +
             bytes_of(bytes.dtype(), static_cast<std::uint64_t>(from));
    };
    UpdateBuffers buffers;
    buffers.grad_dtype = formats_.grad;
    buffers.grad = static_cast<const std::byte*>(grad.data()) +
                   bytes_of(formats_.grad, static_cast<std::uint64_t>(from));
    buffers.round_grad_to = formats_.round_grad_to;
    buffers.weight = place(weight_);
    buffers.master = place(master_);
    buffers.moment1 = place(moment1_);
    buffers.moment2 = place(moment2_);
    buffers.elems = elems;
    return buffers;
  }
  UpdateBuffers buffers(const DTypeArray& grad) { return buffers(grad, 0, elems_); }

 private:
  bool alone() const { return !formats_.options.has_master(); }
  static Block8Map map(int moment) {
    return moment == 1 ? Block8Map::kMoment1 : Block8Map::kMoment2;
  }
  StateBytes& moment_bytes(int moment) { return moment == 1 ? moment1_ : moment2_; }
  template <class T>
  static T& at(StateBytes& bytes, std::int64_t i) {
    return static_cast<T*>(bytes.data())[i];
  }

  UpdateFormats formats_;
  std::int64_t elems_;
  StateBytes weight_, master_, moment1_, moment2_;
};

inline void run_update(const Parallel& parallel, const UpdateFormats& formats,
                       const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
                       const UpdateScalars& scalars) {
  const Gemm gemm(parallel, Bf16Gemm::kAuto);
  update(parallel, gemm, formats.options, buffers, segments, scalars, nullptr);
}

}  // namespace sluice::kernels::host
