// The ranks of a tensor group in one thread: each segment runs on every rank, then its cuts are
// combined by plain loops. A reference for layers that is no schedule and no collective.
#pragma once

#include <gtest/gtest.h>

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
  // contexts: the ranks have parts of each sequence, and not of the layers. ring: they pass keys
  // on.
  TensorGroup(const model::ModelShape& shape, std::int64_t micro_batch, std::int64_t seq,
              std::int64_t ranks, bool sequence = false, bool contexts = false, bool ring = false)
      : TensorGroup(shape, micro_batch, seq,
                    contexts ? model::TensorShare{0, 1, false, ranks, 0, ring}
                             : model::TensorShare{0, ranks, sequence}) {}
  // As many groups of ranks as `first`, the share of the first rank, says.
  TensorGroup(const model::ModelShape& shape, std::int64_t micro_batch, std::int64_t seq,
              const model::TensorShare& first)
      : first_(first) {
    for (std::int64_t rank = 0; rank < first.ranks * first.contexts; ++rank) {
      model::TensorShare share = first;
      share.rank = rank % first.ranks;
      share.context_rank = rank / first.ranks;
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

  // Among each group of the cut's ranks.
  void combine(std::size_t unit, const schedule::Cut& cut) {
    const auto parts = static_cast<std::size_t>(first_.ranks);
    const bool of_contexts = cut.among == schedule::CutRanks::kContext;
    // Ranks between neighbours of a group, and members.
    const std::size_t stride = of_contexts ? parts : 1;
    const std::size_t size = of_contexts ? static_cast<std::size_t>(first_.contexts)
                             : cut.among == schedule::CutRanks::kSharers ? sharers_
                                                                         : parts;
    for (std::size_t group = 0; group < ranks_.size() / size; ++group) {
      std::vector<WholeModel*> members;
      for (std::size_t i = 0; i < size; ++i) {
        members.push_back(
            ranks_[group / stride * stride * size + group % stride + i * stride].get());
      }
      combine(unit, cut, members);
    }
  }
  void combine(std::size_t unit, const schedule::Cut& cut,
               const std::vector<WholeModel*>& members) {
    crossed_elems_ += cut.elems;
    if (cut.value == schedule::CutValue::kLoss) return add_losses(unit, members);
    std::vector<float*> parts;
    for (WholeModel* rank : members) {
      const model::PassBuffers at = rank->buffers(unit);
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
    if (cut.kind == schedule::CutKind::kRing) {
      for (std::size_t rank = parts.size(); rank-- > 1;) {
        std::swap_ranges(parts[rank], parts[rank] + cut.elems, parts[rank - 1]);
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

  static void add_losses(std::size_t unit, const std::vector<WholeModel*>& members) {
    double sum = 0;
    for (WholeModel* rank : members) sum += *rank->buffers(unit).loss;
    for (WholeModel* rank : members) *rank->buffers(unit).loss = sum;
  }

  model::TensorShare first_;
  std::vector<std::unique_ptr<WholeModel>> ranks_;
  std::size_t sharers_ = 1;  // ranks that hold copies of the same key/value heads
  std::uint64_t crossed_elems_ = 0;
};

// Compares the ranks' gradients with the whole model's, tensor by tensor. Also checks that each
// element is on some rank, and that copies of an element have equal bits.
inline void expect_equal_gradients(TensorGroup& group, WholeModel& whole) {
  const std::size_t units = whole.model().units().size();
  std::vector<std::vector<float>> joined;
  for (std::size_t unit = 0; unit < units; ++unit) {
    joined.emplace_back(whole.model().layout(unit).elems(), std::nanf(""));
  }
  int different = 0;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    WholeModel& part = group.rank(rank);
    TensorGroup::for_elems(part, whole, [&](std::size_t unit, std::uint64_t at, std::uint64_t to) {
      const float value = part.gradient(unit, at);
      float& seen = joined[unit][to];
      if (!std::isnan(seen) && seen != value) ++different;
      seen = value;
    });
  }
  EXPECT_EQ(different, 0) << "copies of a value differ between ranks";
  for (std::size_t unit = 0; unit < units; ++unit) {
    for (const model::PlacedTensor& tensor : whole.model().layout(unit).tensors()) {
      SCOPED_TRACE(tensor.spec.name);
      double distance = 0, norm = 0;
      for (std::uint64_t i = 0; i < tensor.spec.elems(); ++i) {
        const std::uint64_t elem = tensor.first_elem + i;
        const auto expected = static_cast<double>(whole.gradient(unit, elem));
        distance += std::pow(static_cast<double>(joined[unit][elem]) - expected, 2.0);
        norm += expected * expected;
      }
      EXPECT_GT(norm, 0);
      EXPECT_LE(std::sqrt(distance), 1e-4 * std::sqrt(norm));  // NaN, which is no less: a gap
    }
  }
}

}  // namespace sluice::testing
