// Final norm, language-model head and softmax cross-entropy.
//
// A rank of a tensor group has the logits of its run of tokens, and never gathers the others'. The
// ranks take the maximum of each row, then sum its exponentials and its target's logit, rows
// elements each. Every rank then knows the loss, and adds its part of the gradient of the normed
// input. Logits are recomputed for that part, as they are for the weight gradient. A rank that has
// only its part of the rows gathers the normed input of all. A rank with a part of each sequence
// has all logits of its rows, and adds its loss.
#include <algorithm>

#include "engine/model/constants.hpp"
#include "engine/model/model.hpp"
#include "engine/model/region.hpp"
#include "engine/model/tensor_share.hpp"

namespace sluice::model {
namespace {

std::vector<TensorSpec> head_tensors(const ModelShape& shape, const TensorShare& share) {
  std::vector<TensorSpec> tensors;
  tensors.push_back({"head.norm.weight", {shape.hidden}, Init::kOnes, 0.0f, false});
  if (!shape.is_llama()) {
    tensors.push_back({"head.norm.bias", {shape.hidden}, Init::kZeros, 0.0f, false});
  }
  if (!shape.tie_embeddings) {
    tensors.push_back(take_tokens(
        {"head.weight", {shape.vocab, shape.hidden}, Init::kNormal, 0.02f, true}, share));
  }
  return tensors;
}

class HeadLayer final : public Layer {
 public:
  HeadLayer(const ModelShape& shape, const TensorShare& share)
      : Layer(UnitLayout(head_tensors(shape, share))), shape_(shape), share_(share) {}

  std::vector<schedule::SavedPart> saves(const BatchShape& whole,
                                         const kernels::Kernels&) const override {
    const BatchShape batch = share_.own_batch(whole);
    return declared_parts(batch);
  }

  PassNeeds needs(const BatchShape& whole, const kernels::Kernels& kernels) const override {
    const BatchShape batch = share_.own_batch(whole);
    PassNeeds needs;
    needs.saved_bytes = saved_bytes(declared_parts(batch));
    const std::uint64_t head = head_workspace_bytes(kernels, batch);
    Region statistics;
    cut_statistics(batch, statistics);
    // A pass that runs as one has no statistics.
    const std::uint64_t targets = round_up(share_.token_bytes(batch), kTensorAlignmentBytes);
    needs.forward_workspace_bytes =
        targets + head + (share_.is_whole() ? 0 : statistics.used_bytes());
    Region gathered;
    if (share_.cuts_rows()) gathered.take(all_rows_bytes(batch));
    needs.backward_weight_workspace_bytes = targets + head + gathered.used_bytes();
    needs.segments = declared_segments(batch);
    return needs;
  }

  // Evaluation: the loss alone.
  void forward(kernels::Kernels& kernels, const BatchShape& whole,
               const PassBuffers& at) const override {
    const BatchShape batch = share_.own_batch(whole);
    run(kernels, batch, at, false);
  }
  void loss(kernels::Kernels& kernels, const BatchShape& whole,
            const PassBuffers& at) const override {
    const BatchShape batch = share_.own_batch(whole);
    run(kernels, batch, at, true);
  }

  void backward_input(kernels::Kernels& kernels, const BatchShape& whole,
                      const PassBuffers& at) const override {
    const BatchShape batch = share_.own_batch(whole);
    const Saved saved = cut(batch, at.saved);
    kernels.norm_backward_input(norm_shape(batch), saved.normed_grad, at.input,
                                tensor(at.weights, 0, batch.dtype), saved.mean, saved.rstd, nullptr,
                                at.grad_input);
  }

  void backward_weight(kernels::Kernels& kernels, const BatchShape& whole,
                       const PassBuffers& at) const override {
    const BatchShape batch = share_.own_batch(whole);
    const Saved saved = cut(batch, at.saved);
    Region workspace(at.workspace);
    const std::byte* normed = saved.normed;
    if (share_.cuts_rows()) {
      std::byte* const all = workspace.take(all_rows_bytes(batch));
      if (at.segments.has(kInput)) copy_own(kernels, batch, saved.normed, all);
      normed = all;
    }
    if (!at.segments.has(kProducts)) return;
    clear_gaps(kernels, at.grad_weights, batch.dtype);
    kernels.norm_backward_weight(
        norm_shape(batch), saved.normed_grad, at.input, saved.mean, saved.rstd,
        tensor(at.grad_weights, 0, batch.dtype),
        shape_.is_llama() ? nullptr : tensor(at.grad_weights, 1, batch.dtype));
    std::byte* table_grad = shape_.tie_embeddings
                                ? at.tied_grad_weights
                                : tensor(at.grad_weights, table_index(), batch.dtype);
    if (shape_.tie_embeddings) {
      // The tied gradient is padded to whole norm blocks, as the embedding unit is.
      const auto elems = static_cast<std::uint64_t>(head_shape(batch).vocab * shape_.hidden);
      const auto place = static_cast<std::uint64_t>(largest_shape(batch).vocab * shape_.hidden);
      const std::uint64_t gap = round_up(place, kLawBlockElems) - elems;
      const std::uint64_t elem_bytes = dtype_bytes(batch.dtype);
      if (gap > 0) kernels.zero(table_grad + elems * elem_bytes, gap * elem_bytes);
    }
    const std::int32_t* const targets = own_targets(kernels, batch, at, workspace);
    kernels.head_backward_weight(head_shape(batch), normed, table(batch, at), targets,
                                 at.loss_scale, saved.log_sum_exp, table_grad, workspace.take(0));
  }

 private:
  // The segments of a forward pass and of the loss.
  enum Segment : std::int32_t { kNorm, kLogits, kExponentials, kGradient, kEnd };
  // The segments of BackwardWeight.
  enum WeightSegment : std::int32_t { kInput, kProducts };

  struct Saved {
    std::byte* normed;
    float* mean;
    float* rstd;
    float* log_sum_exp;
    std::byte* normed_grad;
  };

  std::vector<schedule::SavedPart> declared_parts(const BatchShape& batch) const {
    const auto rows = static_cast<std::uint64_t>(batch.rows());
    const auto own_rows = static_cast<std::uint64_t>(share_.own_rows(batch.rows()));
    const std::uint64_t hidden =
        round_up(own_rows * static_cast<std::uint64_t>(shape_.hidden) * dtype_bytes(batch.dtype),
                 kTensorAlignmentBytes);
    const std::uint64_t own_stats = round_up(own_rows * sizeof(float), kTensorAlignmentBytes);
    const std::uint64_t stats = round_up(rows * sizeof(float), kTensorAlignmentBytes);
    constexpr schedule::SavedFor kWeight = schedule::SavedFor::kBackwardWeight;
    return {{"head_mean", own_stats},
            {"head_rstd", own_stats},
            {"head_normed_grad", hidden},
            {"head_normed", hidden, kWeight},
            {"head_log_sum_exp", stats, kWeight}};
  }

  // The rank's maximum of each row and that of all ranks, the sum of exponentials, and the target's
  // logit: fp32 [rows] each, in front of the head's own workspace. Of cut rows also the normed
  // input of all rows and its gradient.
  struct Statistics {
    std::byte *own_max, *max, *sum, *target, *normed, *normed_grad;
    // In the workspace.
    std::uint64_t max_begin, sum_begin, target_begin, normed_begin, normed_grad_begin;
  };
  Statistics cut_statistics(const BatchShape& batch, Region& region) const {
    const std::uint64_t bytes = static_cast<std::uint64_t>(batch.rows()) * sizeof(float);
    Statistics statistics{};
    statistics.own_max = region.take(bytes);
    statistics.max_begin = region.used_bytes();
    statistics.max = region.take(bytes);
    statistics.sum_begin = region.used_bytes();
    statistics.sum = region.take(bytes);
    statistics.target_begin = region.used_bytes();
    statistics.target = region.take(bytes);
    statistics.normed_begin = region.used_bytes();
    if (share_.cuts_rows()) statistics.normed = region.take(all_rows_bytes(batch));
    statistics.normed_grad_begin = region.used_bytes();
    if (share_.cuts_rows()) statistics.normed_grad = region.take(all_rows_bytes(batch));
    return statistics;
  }

  schedule::UnitSegments declared_segments(const BatchShape& batch) const {
    schedule::UnitSegments segments;
    segments.forward = segments.loss = {{}};
    segments.backward_weight = {{}, {}};
    if (share_.adds_products()) segments = tensor_segments(batch);
    if (!share_.cuts_sequences()) return segments;
    // The ranks of a context group add the losses of their rows, and their gradients.
    schedule::Cut loss;
    loss.value = schedule::CutValue::kLoss;
    loss.elems = 1;
    loss.dtype = DType::kF64;
    loss.among = schedule::CutRanks::kContext;
    segments.forward.back().push_back(loss);
    segments.loss[segments.forward.size() - 1].push_back(loss);
    std::vector<schedule::Cut>& gradients = segments.backward_weight.back();
    for (const schedule::Cut& gradient : share_.gradient_sum(layout(), batch.dtype)) {
      gradients.push_back(gradient);
    }
    if (shape_.tie_embeddings) {
      schedule::Cut table = gradients.back();
      table.value = schedule::CutValue::kTiedGradient;
      table.elems = static_cast<std::uint64_t>(largest_shape(batch).vocab * shape_.hidden);
      gradients.push_back(table);
    }
    return segments;
  }

  schedule::UnitSegments tensor_segments(const BatchShape& batch) const {
    Region region;
    const Statistics statistics = cut_statistics(batch, region);
    const auto of_rows = [&](schedule::CutKind kind, std::uint64_t begin_bytes) {
      return schedule::Cut{kind, schedule::CutValue::kWorkspace, begin_bytes,
                           static_cast<std::uint64_t>(batch.rows()), DType::kF32};
    };
    const auto of_inputs = [&](schedule::CutKind kind, std::uint64_t begin_bytes) {
      return schedule::Cut{kind, schedule::CutValue::kWorkspace, begin_bytes,
                           static_cast<std::uint64_t>(batch.rows() * shape_.hidden), batch.dtype};
    };
    using schedule::CutKind;
    schedule::UnitSegments segments;
    segments.forward = {{},
                        {of_rows(CutKind::kMax, statistics.max_begin)},
                        {of_rows(CutKind::kSum, statistics.sum_begin),
                         of_rows(CutKind::kSum, statistics.target_begin)},
                        {}};
    const bool cut = share_.cuts_rows();
    if (cut) segments.forward[kNorm] = {of_inputs(CutKind::kGather, statistics.normed_begin)};
    segments.loss = segments.forward;
    segments.backward_weight = {{}, {}};
    if (cut) {
      segments.loss[kGradient] = {of_inputs(CutKind::kScatter, statistics.normed_grad_begin)};
      segments.loss.emplace_back();
      segments.backward_weight[kInput] = {of_inputs(CutKind::kGather, 0)};
      segments.backward_weight[kProducts] = norm_sums(batch);
    } else {
      schedule::Cut gradient = of_inputs(CutKind::kSum, 0);
      const auto parts = declared_parts(batch);
      gradient.value = schedule::CutValue::kSaved;
      gradient.begin_bytes = parts[0].bytes + parts[1].bytes;  // head_normed_grad
      segments.loss[kGradient] = {gradient};
    }
    return segments;
  }
  const std::int32_t* own_targets(kernels::Kernels& kernels, const BatchShape& batch,
                                  const PassBuffers& at, Region& workspace) const {
    return share_.own_tokens(kernels, batch, at.targets, workspace.take(share_.token_bytes(batch)));
  }
  // The gradients of the norm's weights, which the ranks of cut rows have of their rows.
  std::vector<schedule::Cut> norm_sums(const BatchShape& batch) const {
    std::vector<schedule::Cut> sums;
    for (std::size_t i = 0; i < (shape_.is_llama() ? 1u : 2u); ++i) {
      const PlacedTensor& norm = layout().tensors()[i];
      sums.push_back({schedule::CutKind::kSum, schedule::CutValue::kGradient,
                      norm.first_elem * dtype_bytes(batch.dtype), norm.spec.elems(), batch.dtype});
    }
    return sums;
  }

  Saved cut(const BatchShape& batch, const SavedRanges& ranges) const {
    const std::vector<schedule::SavedPart> saved_parts = declared_parts(batch);
    SavedRegion region(saved_parts, ranges);
    Saved saved{};
    saved.mean = region.take_floats();
    saved.rstd = region.take_floats();
    saved.normed_grad = region.take();
    saved.normed = region.take();
    saved.log_sum_exp = region.take_floats();
    return saved;
  }

  std::size_t table_index() const { return shape_.is_llama() ? 1 : 2; }

  const std::byte* table(const BatchShape& batch, const PassBuffers& at) const {
    return shape_.tie_embeddings ? at.tied_weights : tensor(at.weights, table_index(), batch.dtype);
  }

  kernels::NormShape norm_shape(const BatchShape& batch) const {
    return {share_.own_rows(batch.rows()), shape_.hidden, shape_.is_llama(), kNormEpsilon,
            batch.dtype};
  }
  kernels::HeadShape head_shape(const BatchShape& batch) const {
    return {batch.rows(), shape_.hidden, share_.tokens(shape_.vocab), batch.dtype,
            share_.first_token(shape_.vocab)};
  }
  // All ranks have the same memory. Products with fewer tokens may need more of it, as their
  // library chooses.
  std::uint64_t head_workspace_bytes(const kernels::Kernels& kernels,
                                     const BatchShape& batch) const {
    kernels::HeadShape shape = largest_shape(batch);
    const std::uint64_t most = kernels.head_workspace_bytes(shape);
    shape.vocab = share_.least_tokens(shape_.vocab);
    return std::max(most, kernels.head_workspace_bytes(shape));
  }
  kernels::HeadShape largest_shape(const BatchShape& batch) const {
    return {batch.rows(), shape_.hidden, share_.most_tokens(shape_.vocab), batch.dtype};
  }

  void run(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
           bool train) const {
    const Saved saved = cut(batch, at.saved);
    if (at.segments.has(kNorm)) {
      kernels.norm_forward(norm_shape(batch), at.input, tensor(at.weights, 0, batch.dtype),
                           shape_.is_llama() ? nullptr : tensor(at.weights, 1, batch.dtype),
                           saved.normed, saved.mean, saved.rstd);
    }
    // One call makes all segments, where no cut lies between them.
    if (share_.is_whole()) {
      Region workspace(at.workspace);
      const std::int32_t* const targets = own_targets(kernels, batch, at, workspace);
      return kernels.head_forward(head_shape(batch), saved.normed, table(batch, at), targets,
                                  at.loss_scale, at.loss, saved.log_sum_exp,
                                  train ? saved.normed_grad : nullptr, workspace.take(0));
    }
    run_segments(kernels, batch, at, saved, train);
  }

  void run_segments(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                    const Saved& saved, bool train) const {
    Region region(at.workspace);
    const Statistics statistics = cut_statistics(batch, region);
    const auto floats = [](std::byte* data) { return reinterpret_cast<float*>(data); };
    const kernels::HeadShape shape = head_shape(batch);
    const std::int32_t* const targets = own_targets(kernels, batch, at, region);
    std::byte* const scratch = region.take(0);
    const kernels::RowStatistics rows{floats(statistics.own_max), floats(statistics.max),
                                      floats(statistics.sum), floats(statistics.target)};
    const bool cut = share_.cuts_rows();
    const std::byte* normed = cut ? statistics.normed : saved.normed;
    std::byte* normed_grad = cut ? statistics.normed_grad : saved.normed_grad;
    if (at.segments.has(kNorm) && cut) copy_own(kernels, batch, saved.normed, statistics.normed);
    if (at.segments.has(kLogits)) {
      kernels.head_statistics(shape, normed, table(batch, at), targets, rows, scratch);
    }
    if (at.segments.has(kExponentials)) kernels.head_rescale(batch.rows(), rows);
    if (at.segments.has(kGradient)) {
      kernels.head_loss(batch.rows(), rows, at.loss, saved.log_sum_exp);
      if (train) {
        kernels.head_input_gradient(shape, normed, table(batch, at), targets, at.loss_scale,
                                    saved.log_sum_exp, normed_grad, scratch);
      }
    }
    if (!at.segments.has(kEnd) || !cut || !train) return;
    kernels.cast(share_.own_part(normed_grad, batch.rows(), shape_.hidden, batch.dtype),
                 batch.dtype, saved.normed_grad, batch.dtype, false,
                 share_.own_rows(batch.rows()) * shape_.hidden);
  }

  std::uint64_t all_rows_bytes(const BatchShape& batch) const {
    return static_cast<std::uint64_t>(batch.rows() * shape_.hidden) * dtype_bytes(batch.dtype);
  }
  // Puts this rank's rows into their place among all rows.
  void copy_own(kernels::Kernels& kernels, const BatchShape& batch, const std::byte* rows,
                std::byte* all) const {
    kernels.cast(rows, batch.dtype, share_.own_part(all, batch.rows(), shape_.hidden, batch.dtype),
                 batch.dtype, false, share_.own_rows(batch.rows()) * shape_.hidden);
  }

  ModelShape shape_;  // of the whole model
  TensorShare share_;
};

}  // namespace

std::unique_ptr<Layer> make_head_layer(const ModelShape& shape, const TensorShare& share) {
  return std::make_unique<HeadLayer>(shape, share);
}

}  // namespace sluice::model
