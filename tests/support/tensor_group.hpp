// The ranks of a tensor group in one thread: each segment runs on every rank, then its cuts are
// combined by plain loops. A reference for layers that is no schedule and no collective.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/support/whole_model.hpp"

namespace sluice::testing {

class TensorGroup {
 public:
  // contexts: the ranks have parts of each sequence, and not of the layers.
  TensorGroup(const model::ModelShape& shape, std::int64_t micro_batch, std::int64_t seq,
              std::int64_t ranks, bool sequence = false, bool contexts = false) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      model::TensorShare share{rank, ranks, sequence};
      if (contexts) share = {0, 1, false, ranks, rank};
      sharers_ = static_cast<std::size_t>(share.sharers(shape.kv_heads));
      ranks_.push_back(std::make_unique<WholeModel>(shape, micro_batch, seq, 1, share));
    }
  }
  std::size_t size() const { return ranks_.size(); }
  WholeModel& rank(std::size_t rank) { return *ranks_[rank]; }
  // Elements that crossed cuts, each counted once.
  std::uint64_t crossed_elems() const { return crossed_elems_; }
  void clear_crossed_elems() { crossed_elems_ = 0; }

  // Every rank takes its parts of the whole model's weights, and its tokens.
  void take(WholeModel& whole) {
    for (const auto& rank : ranks_) {
      std::copy_n(whole.tokens(), whole.rows(), rank->tokens());
      std::copy_n(whole.targets(), whole.rows(), rank->targets());
      for_elems(*rank, whole, [&](std::size_t unit, std::uint64_t part, std::uint64_t of_whole) {
        rank->weight(unit, part) = whole.weight(unit, of_whole);
      });
    }
  }
  // Calls f(unit, element of the rank's unit, element of the whole unit) for all parameters.
  template <typename F>
  static void for_elems(WholeModel& rank, WholeModel& whole, F f) {
    for (std::size_t unit = 0; unit < rank.model().units().size(); ++unit) {
      const auto& parts = rank.model().units()[unit].layer->layout().tensors();
      const auto& wholes = whole.model().units()[unit].layer->layout().tensors();
      for (std::size_t t = 0; t < parts.size(); ++t) {
        for (std::uint64_t elem = 0; elem < parts[t].spec.elems(); ++elem) {
          f(unit, parts[t].first_elem + elem,
            wholes[t].first_elem + parts[t].spec.run_at(elem).first);
        }
      }
    }
  }

  // The mean loss over the rows, as the first rank has it.
  double loss() {
    const auto& units = ranks_.front()->model().units();
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const bool head = units[unit].is_head;
      run(unit, head ? &model::Layer::loss : &model::Layer::forward,
          head ? needs(unit).segments.loss : needs(unit).segments.forward);
    }
    return ranks_.front()->last_loss();
  }
  // The head's loss without gradients, after loss().
  double evaluate() {
    const std::size_t head = ranks_.front()->model().units().size() - 1;
    run(head, &model::Layer::forward, needs(head).segments.forward);
    return ranks_.front()->last_loss();
  }
  void backward() {
    const auto& units = ranks_.front()->model().units();
    for (std::size_t unit = units.size(); unit-- > 0;) {
      if (units[unit].has_input) {
        run(unit, &model::Layer::backward_input, needs(unit).segments.backward_input);
      }
      run(unit, &model::Layer::backward_weight, needs(unit).segments.backward_weight);
    }
    for (const auto& rank : ranks_) rank->fold_tied_gradient();
  }

 private:
  using Pass = void (model::Layer::*)(kernels::Kernels&, const model::BatchShape&,
                                      const model::PassBuffers&) const;

  model::PassNeeds needs(std::size_t unit) {
    WholeModel& rank = *ranks_.front();
    return rank.model().units()[unit].layer->needs(rank.batch(), rank.kernels());
  }

  void run(std::size_t unit, Pass pass, const schedule::PassSegments& segments) {
    for (std::size_t segment = 0; segment < segments.size(); ++segment) {
      for (const auto& rank : ranks_) {
        model::PassBuffers at = rank->buffers(unit);
        at.segments = {static_cast<std::int32_t>(segment), static_cast<std::int32_t>(segment) + 1};
        ((*rank->model().units()[unit].layer).*pass)(rank->kernels(), rank->batch(), at);
      }
      for (const schedule::Cut& cut : segments[segment]) combine(unit, cut);
    }
  }

  void combine(std::size_t unit, const schedule::Cut& cut) {
    if (cut.value == schedule::CutValue::kLoss) {
      ++crossed_elems_;
      return add_losses(unit);
    }
    const std::size_t sharers = cut.among_sharers ? sharers_ : ranks_.size();
    for (std::size_t first = 0; first < ranks_.size(); first += sharers) {
      combine_among(unit, cut, first, first + sharers);
    }
  }
  void combine_among(std::size_t unit, const schedule::Cut& cut, std::size_t begin,
                     std::size_t end) {
    crossed_elems_ += cut.elems;
    std::vector<float*> parts;
    for (std::size_t rank = begin; rank < end; ++rank) {
      const model::PassBuffers at = ranks_[rank]->buffers(unit);
      std::byte* base = at.workspace;
      if (cut.value == schedule::CutValue::kOutput) base = at.output;
      if (cut.value == schedule::CutValue::kContext) base = at.context;
      if (cut.value == schedule::CutValue::kTiedGradient) base = at.tied_grad_weights;
      if (cut.value == schedule::CutValue::kGradient) base = at.grad_weights;
      if (cut.value == schedule::CutValue::kSaved) base = at.saved.at(0, 1);
      parts.push_back(reinterpret_cast<float*>(base + cut.begin_bytes));
    }
    // The ranks have even parts of what is scattered and gathered.
    const std::uint64_t part = cut.elems / parts.size();
    if (cut.kind == schedule::CutKind::kGather) {
      for (std::size_t from = 0; from < parts.size(); ++from) {
        for (float* to : parts) {
          if (to != parts[from]) std::copy_n(parts[from] + from * part, part, to + from * part);
        }
      }
      return;
    }
    if (cut.kind == schedule::CutKind::kExchange) {
      for (std::size_t a = 0; a < parts.size(); ++a) {
        for (std::size_t b = 0; b < a; ++b) {
          std::swap_ranges(parts[a] + b * part, parts[a] + (b + 1) * part, parts[b] + a * part);
        }
      }
      return;
    }
    for (std::uint64_t i = 0; i < cut.elems; ++i) {
      float made = parts.front()[i];
      for (std::size_t rank = 1; rank < parts.size(); ++rank) {
        const float value = parts[rank][i];
        made = cut.kind == schedule::CutKind::kMax ? std::max(made, value) : made + value;
      }
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        const bool scatters = cut.kind == schedule::CutKind::kScatter;
        // Parts that another rank owns are no whole sums, and nothing may read them.
        parts[rank][i] = scatters && i / part != rank ? std::nanf("") : made;
      }
    }
  }

  void add_losses(std::size_t unit) {
    double sum = 0;
    for (const auto& rank : ranks_) sum += *rank->buffers(unit).loss;
    for (const auto& rank : ranks_) *rank->buffers(unit).loss = sum;
  }

  std::vector<std::unique_ptr<WholeModel>> ranks_;
  std::size_t sharers_ = 1;  // ranks that hold copies of the same key/value heads
  std::uint64_t crossed_elems_ = 0;
};

}  // namespace sluice::testing
