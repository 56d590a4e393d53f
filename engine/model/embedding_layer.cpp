// Token embedding, with learned positions for GPT-2.
//
// A rank of a tensor group holds a run of the tokens. It writes zeros for all others, so that the
// sum over the ranks has every row; the first rank adds the positions. A rank that keeps only its
// part of the rows makes all of them first, and gathers their gradients.
#include <algorithm>

#include "base/error.hpp"
#include "engine/model/model.hpp"
#include "engine/model/region.hpp"
#include "engine/model/tensor_share.hpp"

namespace sluice::model {
namespace {

UnitLayout embedding_layout(const ModelShape& shape, const TensorShare& share) {
  std::vector<TensorSpec> tensors;
  tensors.push_back(take_tokens(
      {"embedding.tokens.weight", {shape.vocab, shape.hidden}, Init::kNormal, 0.02f, true}, share));
  if (!shape.is_llama()) {
    tensors.push_back(
        {"embedding.positions.weight", {shape.max_seq, shape.hidden}, Init::kNormal, 0.02f, true});
  }
  return UnitLayout(std::move(tensors));
}

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(const ModelShape& shape, const TensorShare& share)
      : Layer(embedding_layout(shape, share)), shape_(shape), share_(share) {}

  std::vector<schedule::SavedPart> saves(const BatchShape&,
                                         const kernels::Kernels&) const override {
    return {};
  }

  PassNeeds needs(const BatchShape& whole, const kernels::Kernels& kernels) const override {
    const BatchShape batch = share_.own_batch(whole);
    PassNeeds needs;
    const std::uint64_t all = all_rows_bytes(batch);
    needs.output_bytes = share_.cuts_rows() ? all / static_cast<std::uint64_t>(share_.ranks) : all;
    Region rows;
    if (share_.cuts_rows()) rows.take(all);
    needs.forward_workspace_bytes = rows.used_bytes();
    rows.take(share_.token_bytes(batch));
    needs.backward_weight_workspace_bytes =
        rows.used_bytes() +
        kernels.embedding_backward_workspace_bytes(batch.rows(), share_.most_tokens(shape_.vocab));
    schedule::Cut sum;
    sum.kind = share_.sum();
    sum.value = schedule::CutValue::kOutput;
    sum.elems = static_cast<std::uint64_t>(batch.rows() * shape_.hidden);
    sum.dtype = batch.dtype;
    needs.segments.forward = {{sum}};
    needs.segments.backward_weight = {{}, {}};
    if (share_.cuts_rows()) {
      sum.value = schedule::CutValue::kWorkspace;
      schedule::Cut gather = sum;
      gather.kind = schedule::CutKind::kGather;
      needs.segments.forward = {{sum}, {}};
      needs.segments.backward_weight = {{gather}, {}};
    }
    if (!share_.adds_products()) needs.segments.forward = {{}};
    for (const schedule::Cut& gradient : share_.gradient_sum(layout(), batch.dtype)) {
      needs.segments.backward_weight.back().push_back(gradient);
    }
    return needs;
  }

  void forward(kernels::Kernels& kernels, const BatchShape& whole,
               const PassBuffers& at) const override {
    const BatchShape batch = share_.own_batch(whole);
    const bool adds_positions = has_positions() && share_.is_first();
    const bool cut = share_.cuts_rows();
    std::byte* const all = cut ? at.workspace : at.output;
    if (at.segments.has(kEnd) && !at.segments.has(kRows)) {
      return kernels.cast(own(batch, all), batch.dtype, at.output, batch.dtype, false,
                          share_.own_rows(batch.rows()) * shape_.hidden);
    }
    std::int64_t made = 0;
    for (const TensorShare::RowRun& run : share_.row_runs(batch)) {
      kernels.embedding_forward(at.tokens + run.first, tokens(), tensor(at.weights, 0, batch.dtype),
                                adds_positions ? positions(batch, at.weights, run.first) : nullptr,
                                all + row_bytes(batch, made), run.rows,
                                std::min(run.rows, batch.seq), shape_.hidden, batch.dtype);
      made += run.rows;
    }
  }

  void backward_input(kernels::Kernels&, const BatchShape&, const PassBuffers&) const override {
    throw InternalError("the embedding has no input gradient");
  }

  void backward_weight(kernels::Kernels& kernels, const BatchShape& whole,
                       const PassBuffers& at) const override {
    const BatchShape batch = share_.own_batch(whole);
    Region workspace(at.workspace);
    const std::byte* grad_output = at.grad_output;
    if (share_.cuts_rows()) {
      std::byte* const all = workspace.take(all_rows_bytes(batch));
      if (at.segments.has(kRows)) {
        kernels.cast(at.grad_output, batch.dtype, own(batch, all), batch.dtype, false,
                     share_.own_rows(batch.rows()) * shape_.hidden);
      }
      grad_output = all;
    }
    if (!at.segments.has(kEnd)) return;
    clear_gaps(kernels, at.grad_weights, batch.dtype);
    std::byte* const copy = workspace.take(share_.token_bytes(batch));
    const std::int32_t* const own_tokens = share_.own_tokens(kernels, batch, at.tokens, copy);
    const std::int64_t first = share_.row_runs(batch).front().first;
    std::byte* gradient = nullptr;
    if (has_positions() && share_.passes_keys()) {
      copy_position_gradients(kernels, batch, grad_output, at.grad_weights);
    } else if (has_positions()) {
      if (first > 0) {  // those of the ranks before
        kernels.zero(positions(batch, at.grad_weights, 0), row_bytes(batch, first));
      }
      gradient = positions(batch, at.grad_weights, first);
    }
    kernels.embedding_backward(own_tokens, tokens(), grad_output,
                               tensor(at.grad_weights, 0, batch.dtype), gradient, batch.rows(),
                               batch.seq, shape_.max_seq - first, shape_.hidden, batch.dtype,
                               workspace.take(0));
  }

 private:
  // If rows are cut: the segments of both passes.
  enum Segment : std::int32_t { kRows, kEnd };

  std::uint64_t all_rows_bytes(const BatchShape& batch) const {
    return static_cast<std::uint64_t>(batch.rows() * shape_.hidden) * dtype_bytes(batch.dtype);
  }
  std::byte* own(const BatchShape& batch, std::byte* all) const {
    return share_.own_part(all, batch.rows(), shape_.hidden, batch.dtype);
  }
  // The positions from one of them on.
  template <typename Byte>
  Byte* positions(const BatchShape& batch, Byte* window, std::int64_t first) const {
    return tensor(window, 1, batch.dtype) + row_bytes(batch, first);
  }
  std::uint64_t row_bytes(const BatchShape& batch, std::int64_t rows) const {
    return static_cast<std::uint64_t>(rows * shape_.hidden) * dtype_bytes(batch.dtype);
  }
  // In one sequence's runs of rows, each position's gradient is that of its row.
  void copy_position_gradients(kernels::Kernels& kernels, const BatchShape& batch,
                               const std::byte* grad_output, std::byte* grad_weights) const {
    kernels.zero(positions(batch, grad_weights, 0), row_bytes(batch, shape_.max_seq));
    std::int64_t copied = 0;
    for (const TensorShare::RowRun& run : share_.row_runs(batch)) {
      kernels.cast(grad_output + row_bytes(batch, copied), batch.dtype,
                   positions(batch, grad_weights, run.first), batch.dtype, false,
                   run.rows * shape_.hidden);
      copied += run.rows;
    }
  }
  bool has_positions() const { return !shape_.is_llama(); }
  kernels::TokenRange tokens() const {
    return {share_.first_token(shape_.vocab), share_.tokens(shape_.vocab), shape_.vocab};
  }
  ModelShape shape_;
  TensorShare share_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding_layer(const ModelShape& shape, const TensorShare& share) {
  return std::make_unique<EmbeddingLayer>(shape, share);
}

}  // namespace sluice::model
