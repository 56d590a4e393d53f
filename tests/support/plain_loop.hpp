// One model in plain memory that makes several updates of a schedule by a rule, in a plain loop.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/safetensors.hpp"
#include "engine/config/shapes.hpp"
#include "engine/model/parameter_table.hpp"
#include "kernels/optimizer.hpp"
#include "tests/support/rank_sessions.hpp"
#include "tests/support/whole_model.hpp"

namespace sluice::testing {

// How a schedule of several updates reads weights.
struct UpdateRule {
  std::int64_t updates = 1;  // of one schedule
  // The version of the unit's weights that a micro-batch of the schedule reads: the updates before
  // it.
  std::function<std::int64_t(std::size_t unit, std::int64_t microbatch)> version_of;
};

// The loop: weights after every update of the schedule, and one micro-batch after the other. The
// model computes in fp32.
class PlainLoop {
 public:
  // initial: a file of the weights that the run begins with.
  PlainLoop(const config::Config& config, UpdateRule rule, const std::string& initial)
      : config_(config),
        rule_(std::move(rule)),
        whole_(config::model_shape(config), config.train.micro_batch, config.train.seq,
               config.train.accumulate),
        table_(config::parameter_table(config, whole_.model())) {
    const checkpoint::SafetensorsReader reader(initial);
    for (std::size_t unit = 0; unit < units(); ++unit) {
      for (const model::PlacedTensor& tensor : layout(unit).tensors()) {
        float* to = &whole_.weight(unit, tensor.first_elem);
        reader.read(*reader.find(tensor.spec.name), 0,
                    std::as_writable_bytes(std::span(to, tensor.spec.elems())));
      }
      newest_.push_back(weights(unit));
      moments_.push_back({Floats(layout(unit).elems() * 4), Floats(layout(unit).elems() * 4)});
    }
  }

  void run(std::int64_t updates) {
    for (std::int64_t step = 0; step < updates; step += rule_.updates) {
      versions_ = {newest_};
      for (std::int64_t update = 0; update < rule_.updates; ++update) one_update(step, update);
    }
  }
  const std::vector<std::uint64_t>& losses() const { return losses_; }
  bool has_weights(const std::string& path) {
    const checkpoint::SafetensorsReader reader(path);
    bool same = true;
    for (std::size_t unit = 0; unit < units(); ++unit) {
      for (const model::PlacedTensor& tensor : layout(unit).tensors()) {
        std::vector<float> found(tensor.spec.elems());
        reader.read(*reader.find(tensor.spec.name), 0, std::as_writable_bytes(std::span(found)));
        const auto begin = newest_[unit].begin() + static_cast<std::ptrdiff_t>(tensor.first_elem);
        same = same && std::equal(found.begin(), found.end(), begin, [](float a, float b) {
                 return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
               });
      }
    }
    return same;
  }

 private:
  using Floats = AlignedFloats;
  std::size_t units() const { return whole_.model().units().size(); }
  const model::UnitLayout& layout(std::size_t unit) const {
    return whole_.model().units()[unit].layer->layout();
  }
  std::vector<float> weights(std::size_t unit) {
    const auto* begin = reinterpret_cast<const float*>(whole_.weights(unit));
    return {begin, begin + layout(unit).elems()};
  }
  void load(std::size_t unit, const std::vector<float>& from) {
    std::copy(from.begin(), from.end(), reinterpret_cast<float*>(whole_.weights(unit)));
  }

  void one_update(std::int64_t first_step, std::int64_t update) {
    const std::int64_t step = first_step + update;
    std::vector<std::vector<float>> sums(units());
    double loss = 0;
    for (std::int64_t mb = 0; mb < config_.train.accumulate; ++mb) {
      for (std::size_t unit = 0; unit < units(); ++unit) {
        const auto version = rule_.version_of(unit, update * config_.train.accumulate + mb);
        load(unit, versions_.at(static_cast<std::size_t>(version))[unit]);
      }
      for (std::size_t i = 0; i < whole_.rows(); ++i) {
        const auto row = static_cast<std::int64_t>(i);
        whole_.tokens()[i] = token_of(step, mb, row, config_.model.vocab);
        whole_.targets()[i] = token_of(step, mb, row + 1, config_.model.vocab);
      }
      loss += whole_.loss() * static_cast<double>(whole_.rows());
      whole_.backward();
      for (std::size_t unit = 0; unit < units(); ++unit) add_gradient(unit, sums[unit]);
    }
    losses_.push_back(std::bit_cast<std::uint64_t>(
        loss /
        static_cast<double>(static_cast<std::int64_t>(whole_.rows()) * config_.train.accumulate)));
    for (std::size_t unit = 0; unit < units(); ++unit) apply(unit, sums[unit], step);
    versions_.push_back(newest_);
  }

  void add_gradient(std::size_t unit, std::vector<float>& sum) {
    const auto* gradient = reinterpret_cast<const float*>(whole_.gradients(unit));
    if (sum.empty()) return sum.assign(gradient, gradient + layout(unit).elems());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }

  void apply(std::size_t unit, std::vector<float>& gradient, std::int64_t step) {
    load(unit, newest_[unit]);
    kernels::UpdateBuffers buffers;
    std::copy(gradient.begin(), gradient.end(), reinterpret_cast<float*>(whole_.gradients(unit)));
    buffers.grad = whole_.gradients(unit);
    buffers.grad_dtype = buffers.round_grad_to = DType::kF32;
    buffers.weight = whole_.weights(unit);
    const auto moment = [&](StateKind kind, std::size_t at) {
      const bool kept =
          kernels::state_layout(table_.options(unit), kind).extent != kernels::StateExtent::kAbsent;
      return kept ? moments_[unit][at].bytes() : nullptr;
    };
    buffers.moment1 = moment(StateKind::kMoment1, 0);
    buffers.moment2 = moment(StateKind::kMoment2, 1);
    buffers.elems = static_cast<std::int64_t>(layout(unit).elems());
    kernels::UpdateScalars scalars;
    scalars.lr = static_cast<float>(learning_rate(step, rule_.updates));
    scalars.step = step + 1;
    scalars.grad_scale = 1.0f;
    whole_.kernels().update(table_.options(unit), buffers,
                            table_.segments(unit, 0, layout(unit).elems()), scalars, nullptr);
    newest_[unit] = weights(unit);
  }

  const config::Config& config_;
  UpdateRule rule_;
  WholeModel whole_;
  model::ParameterTable table_;
  std::vector<std::vector<float>> newest_;                 // by unit
  std::vector<std::vector<std::vector<float>>> versions_;  // of the schedule, then by unit
  std::vector<std::array<Floats, 2>> moments_;             // by unit
  std::vector<std::uint64_t> losses_;
};

}  // namespace sluice::testing
