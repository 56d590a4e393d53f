// One chunk's gradient, weight and states in any format, for the suites of optimizers: seen as fp32
// numbers through the scalar codecs, and updated by Kernels or by the documented arithmetic.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/block8.hpp"
#include "kernels/key_runs.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/split_master.hpp"
#include "kernels/stochastic_rounding.hpp"
#include "tests/contract/kernels_contract.hpp"
#include "tests/contract/update_oracles.hpp"

namespace sluice::testing {

using kernels::StateExtent;
using kernels::StateLayout;
using kernels::TensorView;
using kernels::UpdateBuffers;

struct UpdateFormats {
  OptimizerOptions options;
  DType grad = DType::kF32;
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
  std::string name = rule_name(options) + "_" + std::string(dtype_name(formats.grad));
  if (formats.round_grad_to != DType::kF32) name += "Rounded";
  name += "_" + std::string(dtype_name(options.weight)) + (options.split_master ? "Split" : "");
  return name + "_" + std::string(dtype_name(options.moments));
}

inline OptimizerOptions options_of(OptimizerRule rule) {
  OptimizerOptions options;
  options.rule = rule;
  options.seed = 0x123456789abcdefull;
  if (rule == OptimizerRule::kMuon) options.momentum = 0.95;
  return options;
}

inline std::vector<OptimizerOptions> elementwise_rules() {
  std::vector<OptimizerOptions> rules;
  for (const OptimizerRule rule :
       {OptimizerRule::kAdamW, OptimizerRule::kAdam, OptimizerRule::kSgd, OptimizerRule::kSgd,
        OptimizerRule::kSgd, OptimizerRule::kLion}) {
    rules.push_back(options_of(rule));
  }
  rules[2].momentum = 0;
  rules[4].nesterov = true;
  return rules;
}

inline std::vector<OptimizerOptions> tensor_rules() {
  return {options_of(OptimizerRule::kAdafactor), options_of(OptimizerRule::kSm3),
          options_of(OptimizerRule::kMuon)};
}

// Every format of weight, gradient and, where the rule has any, of moments.
inline std::vector<UpdateFormats> all_formats(const OptimizerOptions& rule) {
  std::vector<DType> moment_types{DType::kF32};
  if (rule.rule != OptimizerRule::kAdafactor) {
    moment_types.insert(moment_types.end(), {DType::kBF16, DType::kBlock8});
  }
  std::vector<UpdateFormats> all;
  for (const auto& [weight, split] :
       {std::pair(DType::kF32, false), std::pair(DType::kBF16, false),
        std::pair(DType::kBF16, true), std::pair(DType::kF16, false)}) {
    const DType half = weight == DType::kF16 ? DType::kF16 : DType::kBF16;
    for (const auto& [grad, round_to] :
         {std::pair(half, DType::kF32), std::pair(DType::kF32, DType::kF32),
          std::pair(DType::kF32, half)}) {
      for (const DType moments : moment_types) {
        UpdateFormats formats{rule, grad, round_to};
        formats.options.weight = weight;
        formats.options.split_master = split;
        formats.options.moments = moments;
        all.push_back(formats);
      }
    }
  }
  return all;
}

inline std::vector<UpdateFormats> elementwise_formats() {
  std::vector<UpdateFormats> all;
  for (const OptimizerOptions& rule : elementwise_rules()) {
    for (const UpdateFormats& formats : all_formats(rule)) all.push_back(formats);
  }
  return all;
}

inline UpdateFormats fp32_formats(OptimizerOptions options) {
  options.weight = DType::kF32;
  return {options, DType::kF32, DType::kF32};
}

inline UpdateScalars scalars_of(std::int64_t step, float lr = 3e-3f) {
  return {.lr = lr, .grad_scale = 0.731f, .step = step};
}

// Elements of a tensor's kPerTensor state; 0: the rule has none.
inline std::uint64_t statistics_of(const OptimizerOptions& options, const TensorView& tensor) {
  return needs_whole_tensors(options) ? state_elems(options, StateKind::kMoment2, tensor) : 0;
}

// Gaps (alignment padding), odd bounds, an empty segment, one over several pieces of 16,384 (fast
// backends), keys that are no multiples of anything and pass 2^36 (Philox counters beyond 32 bits).
inline std::vector<ParameterSegment> elementwise_segments(const UpdateFormats& formats,
                                                          std::int64_t elems) {
  const bool blocks = formats.options.moments == DType::kBlock8;
  const std::int64_t end = elems - 3191, next = elems - 3072;
  return {{0, 1001, 0.1f, 1.0f, 5},
          {1024, 1024, 0.5f},
          {1152, end, 0.01f, 0.5f, (std::uint64_t{1} << 36) + 77},
          {blocks ? next : end, elems - 1, 0.0f, 2.0f, 1000003}};
}

// Tensors begin at multiples of 128 elements, as in a chunk of bf16, with gaps between them and
// between their statistics.
inline std::vector<ParameterSegment> tensor_segments(const OptimizerOptions& options,
                                                     const std::vector<TensorView>& shapes) {
  std::vector<ParameterSegment> segments;
  std::int64_t end = 0;
  std::uint64_t statistics = 0;
  for (const TensorView& shape : shapes) {
    ParameterSegment segment;
    segment.begin = (end + 127) / 128 * 128;
    segment.end = end = segment.begin + shape.rows * shape.cols;
    segment.weight_decay = 0.1f;
    segment.lr_scale = segments.size() % 2 == 0 ? 1.0f : 0.5f;
    segment.first_key = 1000 + static_cast<std::uint64_t>(segment.begin);
    segment.tensor = shape;
    segment.moment2_begin = statistics;
    statistics += statistics_of(options, shape) + 3;
    segments.push_back(segment);
  }
  return segments;
}

// Rows above and below columns, a vector, a column.
inline std::vector<TensorView> odd_shapes() {
  return {{33, 7, true}, {7, 33, true}, {1, 50, false}, {50, 1, true}, {70, 20, false}};
}
// More tiles than one either way.
inline std::vector<TensorView> shapes_of_many_tiles() {
  return {{1, 2300, false}, {130, 1100, true}, {300, 65, true}, {1, 7, false}, {65, 2049, false}};
}

class UpdateChunk {
 public:
  using Bytes = std::vector<std::uint8_t>;

  // Weights at random and states of zeros in the segments. Between them numbers that must stay, but
  // for blocks of 8 bits, which are written whole: zeros stay zeros.
  UpdateChunk(const UpdateFormats& of, std::int64_t count, std::vector<ParameterSegment> where,
              unsigned seed = 12)
      : formats(of), segments(std::move(where)), elems(count) {
    const OptimizerOptions& options = of.options;
    set_grad(std::vector<float>(static_cast<std::size_t>(count)));
    const ParameterSegment last = segments.empty() ? ParameterSegment{} : segments.back();
    statistics_ = last.moment2_begin + statistics_of(options, last.tensor) + 3;
    const auto state = [&](StateKind kind) {
      const StateLayout layout = state_layout(options, kind);
      if (layout.extent == StateExtent::kAbsent) return Bytes();
      return Bytes(bytes_of(layout.dtype, layout.extent == StateExtent::kPerTensor
                                              ? statistics_
                                              : static_cast<std::uint64_t>(count)));
    };
    weight_ = Bytes(bytes_of(options.weight, static_cast<std::uint64_t>(count)));
    master_ = state(StateKind::kMaster);
    moment1_ = state(StateKind::kMoment1);
    moment2_ = state(StateKind::kMoment2);
    const std::vector<float> start = normal_floats(count, seed, 0.3f);
    std::vector<float> gaps(static_cast<std::size_t>(count), kGap);
    std::vector<float> statistics(statistics_, kGap);
    for (std::int64_t i = 0; i < count; ++i) set_number(i, kGap);
    for (const ParameterSegment& segment : segments) {
      for (std::int64_t i = segment.begin; i < segment.end; ++i) {
        set_number(i, start[static_cast<std::size_t>(i)]);
        gaps[static_cast<std::size_t>(i)] = 0;
      }
      const std::uint64_t begin = segment.moment2_begin;
      std::fill_n(statistics.begin() + static_cast<std::ptrdiff_t>(begin),
                  statistics_of(options, segment.tensor), 0.0f);
    }
    if (options.moments == DType::kBlock8) std::fill(gaps.begin(), gaps.end(), 0.0f);
    store_moments(gaps, per_tensor() ? statistics : gaps, 1);
  }
  // A chunk of whole tensors.
  UpdateChunk(const UpdateFormats& of, const std::vector<TensorView>& shapes, unsigned seed = 12)
      : UpdateChunk(of, (tensor_segments(of.options, shapes).back().end + 5 + 4095) / 4096 * 4096,
                    tensor_segments(of.options, shapes), seed) {}

  // Moments of elements as in the middle of a run.
  void draw_moments(unsigned seed) {
    const std::vector<float> drawn = normal_floats(elems, seed, 1e-3f);
    std::vector<float> first = moment(1), second = moment(2);
    for (const ParameterSegment& segment : segments) {
      for (auto i = static_cast<std::size_t>(segment.begin);
           i < static_cast<std::size_t>(segment.end); ++i) {
        if (!first.empty()) first[i] = drawn[i];
        if (!second.empty() && !per_tensor()) second[i] = drawn[i] * drawn[i] * 0.5f;
      }
    }
    store_moments(first, second, 1);
  }

  void set_grad(const std::vector<float>& values) { grad = DTypeArray(formats.grad, values); }
  void draw_grad(unsigned seed, float size = 1e-2f) { set_grad(normal_floats(elems, seed, size)); }
  // As the rule sees it, before grad_scale.
  float grad_at(std::int64_t i) const {
    const float value = grad[static_cast<std::size_t>(i)];
    if (formats.round_grad_to == DType::kF32) return value;
    return DTypeArray(formats.round_grad_to, std::vector{value})[0];
  }

  // The number that the rule updates, in fp32.
  float number(std::int64_t i) const {
    if (formats.options.split_master) {
      return kernels::join_master({get<bf16>(weight_, i), get<std::int16_t>(master_, i)});
    }
    return get<float>(formats.options.has_master() ? master_ : weight_, i);
  }
  void set_number(std::int64_t i, float value) {
    const OptimizerOptions& options = formats.options;
    const kernels::SplitMaster split = kernels::split_master(value);
    if (options.split_master) {
      put(weight_, i, split.weight);
      put(master_, i, split.remainder);
      return;
    }
    put(options.has_master() ? master_ : weight_, i, value);
    if (options.weight == DType::kBF16) put(weight_, i, bf16_weight_from_float(value));
    if (options.weight == DType::kF16) put(weight_, i, f16_from_float(value));
  }
  float weight(std::int64_t i) const {
    if (formats.options.weight == DType::kF32) return get<float>(weight_, i);
    return formats.options.weight == DType::kF16 ? to_float(get<f16>(weight_, i))
                                                 : to_float(get<bf16>(weight_, i));
  }
  const Bytes& weights() const { return weight_; }

  // All moments 1 or 2: of elements, or the tensors' statistics. Absent: none.
  std::vector<float> moment(int which) const {
    const Bytes& bytes = which == 1 ? moment1_ : moment2_;
    if (bytes.empty()) return {};
    const DType dtype = moment_dtype(which);
    std::vector<float> values(which == 2 && per_tensor() ? statistics_
                                                         : static_cast<std::size_t>(elems));
    if (dtype == DType::kBlock8) {
      kernels::block8_decode_state(map(which), bytes.data(), values.size(), values.data());
      return values;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      values[i] = dtype == DType::kF32 ? get<float>(bytes, at) : to_float(get<bf16>(bytes, at));
    }
    return values;
  }
  // Rounded as the step says and the elements' keys.
  void store_moments(const std::vector<float>& first, const std::vector<float>& second,
                     std::int64_t step) {
    std::vector<std::uint64_t> keys(static_cast<std::size_t>(elems));
    for (const ParameterSegment& segment : segments) {
      for (std::int64_t i = segment.begin; i < segment.end; ++i) {
        keys[static_cast<std::size_t>(i)] = kernels::key_at(segment, i);
      }
    }
    for (const int which : {1, 2}) {
      Bytes& bytes = which == 1 ? moment1_ : moment2_;
      const std::vector<float>& values = which == 1 ? first : second;
      const DType dtype = moment_dtype(which);
      if (bytes.empty()) continue;
      if (dtype == DType::kBlock8) {
        kernels::block8_encode_state(map(which), values.data(), values.size(), bytes.data());
        continue;
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        if (dtype == DType::kF32) {
          put(bytes, at, values[i]);
        } else {
          const auto noise = kernels::rounding_noise(formats.options.seed, step, keys[i], which);
          put(bytes, at, kernels::bf16_stochastic(values[i], noise));
        }
      }
    }
  }

  // A segment's numbers, its moments among those of all.
  template <class Number>
  TensorNumbers<Number> tensor(const ParameterSegment& segment, float grad_scale,
                               const std::vector<Number>& first,
                               const std::vector<Number>& second) const {
    TensorNumbers<Number> t{segment, {}, {}, {}, {}};
    for (std::int64_t i = segment.begin; i < segment.end; ++i) {
      t.w.push_back(static_cast<Number>(number(i)));
      t.g.push_back(static_cast<Number>(grad_at(i)) * static_cast<Number>(grad_scale));
      t.m.push_back(first.empty() ? 0 : first[static_cast<std::size_t>(i)]);
    }
    const auto [begin, count] = moment2_range(segment);
    for (std::size_t i = begin; i < begin + count; ++i) {
      t.v.push_back(second.empty() ? 0 : second[i]);
    }
    return t;
  }

  // A step of the documented arithmetic.
  void update_as_documented(const UpdateScalars& scalars) {
    std::vector<float> first = moment(1), second = moment(2);
    for (const ParameterSegment& segment : segments) {
      Floats t = tensor(segment, scalars.grad_scale, first, second);
      documented_step(formats.options, scalars, t);
      const auto begin = static_cast<std::ptrdiff_t>(segment.begin);
      for (std::size_t i = 0; i < t.w.size(); ++i) {
        set_number(segment.begin + static_cast<std::int64_t>(i), t.w[i]);
      }
      if (!first.empty()) std::copy(t.m.begin(), t.m.end(), first.begin() + begin);
      const auto place = static_cast<std::ptrdiff_t>(moment2_range(segment).first);
      if (!second.empty()) std::copy(t.v.begin(), t.v.end(), second.begin() + place);
    }
    store_moments(first, second, scalars.step);
  }

  // In place, on the host.
  UpdateBuffers buffers() {
    const auto place = [](Bytes& bytes) { return bytes.empty() ? nullptr : bytes.data(); };
    return {.grad = grad.data(),
            .grad_dtype = formats.grad,
            .round_grad_to = formats.round_grad_to,
            .weight = place(weight_),
            .master = place(master_),
            .moment1 = place(moment1_),
            .moment2 = place(moment2_),
            .elems = elems};
  }
  // By a backend, in its own memory.
  template <class Backend>
  void update(Kernels& kernels, const UpdateScalars& scalars) {
    update<Backend>(kernels, scalars, segments);
  }
  template <class Backend>
  void update(Kernels& kernels, const UpdateScalars& scalars,
              std::span<const ParameterSegment> some) {
    update<Backend>(kernels, scalars, some, 0, elems);
  }
  // Elements [begin, end) as a chunk of their own (kBlock8: multiples of 4,096).
  template <class Backend>
  void update_part(Kernels& kernels, const UpdateScalars& scalars, std::int64_t begin,
                   std::int64_t end) {
    std::vector<ParameterSegment> here;
    for (ParameterSegment segment : segments) {
      const std::int64_t from = std::max(segment.begin, begin), to = std::min(segment.end, end);
      if (from >= to) continue;
      segment = kernels::segment_from(segment, from);
      segment.begin = from - begin;
      segment.end = to - begin;
      here.push_back(segment);
    }
    update<Backend>(kernels, scalars, here, begin, end);
  }

  bool operator==(const UpdateChunk& other) const {
    return weight_ == other.weight_ && master_ == other.master_ && moment1_ == other.moment1_ &&
           moment2_ == other.moment2_;
  }
  // To the bit, except that one NaN is as good as another. The remainder of a NaN has no meaning.
  void expect_same(const UpdateChunk& want) const {
    const auto same = [](float a, float b) {
      return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
    };
    for (std::int64_t i = 0; i < elems; ++i) {
      ASSERT_TRUE(same(weight(i), want.weight(i))) << "weight of element " << i;
      ASSERT_TRUE(same(number(i), want.number(i)) || std::isnan(weight(i))) << "master " << i;
    }
    for (const int which : {1, 2}) {
      const std::vector<float> got = moment(which), wanted = want.moment(which);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(same(got[i], wanted[i]))
            << "moment " << which << " at " << i << ": " << got[i] << ", not " << wanted[i];
      }
    }
  }

  UpdateFormats formats;
  std::vector<ParameterSegment> segments;
  std::int64_t elems;
  DTypeArray grad{DType::kF32, 0};

 private:
  static constexpr float kGap = 777.0f;

  template <class Backend>
  void update(Kernels& kernels, const UpdateScalars& scalars,
              std::span<const ParameterSegment> some, std::int64_t begin, std::int64_t end) {
    const OptimizerOptions& options = formats.options;
    BackendNumbers<Backend, std::uint8_t> on_weight(weight_), on_master(master_),
        on_moment1(moment1_), on_moment2(moment2_);
    BackendArray<Backend> on_grad(grad);
    const auto place = [&](auto& memory, const void* here, DType dtype) -> void* {
      const std::uint64_t offset = bytes_of(dtype, static_cast<std::uint64_t>(begin));
      return here == nullptr ? nullptr : static_cast<std::uint8_t*>(memory.data()) + offset;
    };
    const std::uint64_t bytes = kernels.update_workspace_bytes(options, some);
    typename Backend::Memory workspace(bytes);
    UpdateBuffers all = buffers();
    all.grad = place(on_grad, all.grad, formats.grad);
    all.weight = place(on_weight, all.weight, options.weight);
    all.master = place(on_master, all.master, state_layout(options, StateKind::kMaster).dtype);
    all.moment1 = place(on_moment1, all.moment1, moment_dtype(1));
    all.moment2 = place(on_moment2, all.moment2, moment_dtype(2));
    all.elems = end - begin;
    kernels.update(options, all, some, scalars, bytes == 0 ? nullptr : workspace.data());
    weight_ = on_weight.read();
    master_ = on_master.read();
    moment1_ = on_moment1.read();
    moment2_ = on_moment2.read();
  }
  template <class T>
  static void put(Bytes& bytes, std::int64_t i, T value) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof value, &value, sizeof value);
  }
  template <class T>
  static T get(const Bytes& bytes, std::int64_t i) {
    T value;
    std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    return value;
  }
  bool per_tensor() const { return needs_whole_tensors(formats.options); }
  DType moment_dtype(int which) const {
    return state_layout(formats.options, which == 1 ? StateKind::kMoment1 : StateKind::kMoment2)
        .dtype;
  }
  static kernels::Block8Map map(int which) {
    return which == 1 ? kernels::Block8Map::kMoment1 : kernels::Block8Map::kMoment2;
  }
  // [begin, count) of a segment's second moments.
  std::pair<std::size_t, std::size_t> moment2_range(const ParameterSegment& segment) const {
    if (per_tensor()) {
      return {segment.moment2_begin, statistics_of(formats.options, segment.tensor)};
    }
    return {static_cast<std::size_t>(segment.begin),
            static_cast<std::size_t>(segment.end - segment.begin)};
  }

  std::uint64_t statistics_ = 0;
  Bytes weight_, master_, moment1_, moment2_;
};

}  // namespace sluice::testing
