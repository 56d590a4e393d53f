// Over 800 lines because a block's passes share the cut of its buffers.
//
// A transformer block, pre-norm: x + attention(norm(x)), then r + mlp(norm(r)).
//
// GPT-2: LayerNorm, biases, GELU. Llama: RMSNorm, no biases, rotary positions, SwiGLU. Both may
// share key/value heads among query heads.
//
// A rank of a tensor group has some heads and some columns of the MLP. The qkv and up products are
// column-parallel, those of output and down row-parallel. So a pass has two sums over the ranks:
// forward behind the row-parallel products, backward behind the gradients of the column-parallel
// ones' inputs. The weight gradients need no other rank, but for those of key/value heads that several
// ranks hold: these are added among them.
//
// A rank that has only its part of the rows gathers all of them in front of each product, and gets its
// part of each sum. It gathers the norms' outputs once more for the weight gradients, and adds the
// gradients of the norms' weights with the other ranks.
//
// A rank of a context group has all weights and a part of each sequence. For attention the ranks
// exchange rows of some heads for heads of their rows, and back, or pass keys and values round a ring
// (ring_attention.hpp); gradients are summed over them.
#include <cmath>
#include <initializer_list>

#include "base/error.hpp"
#include "engine/model/constants.hpp"
#include "engine/model/model.hpp"
#include "engine/model/region.hpp"
#include "engine/model/ring_attention.hpp"
#include "engine/model/tensor_share.hpp"

namespace sluice::model {
namespace {

// Indices into the layout, for both families. Biases are set only if the family has them.
struct BlockTensors {
  std::size_t norm1 = 0, norm1_bias = 0, qkv = 0, qkv_bias = 0, output = 0, output_bias = 0;
  std::size_t norm2 = 0, norm2_bias = 0, up = 0, up_bias = 0, down = 0, down_bias = 0;
};

struct BlockPlan {
  std::vector<TensorSpec> tensors;
  BlockTensors at;
};

BlockPlan plan_block(const ModelShape& shape, std::int64_t index, const TensorShare& share) {
  const std::string prefix = "blocks." + std::to_string(index) + ".";
  const bool biased = !shape.is_llama();
  // GPT-2: the projections into the residual stream start smaller, by 1/sqrt(2 * layers).
  const float residual_std = 0.02f / std::sqrt(2.0f * static_cast<float>(shape.layers));
  const std::int64_t up_rows = shape.is_llama() ? 2 * shape.ffn : shape.ffn;
  BlockPlan plan;
  // parts: the logical matrices of Llama, which has a projection each for q, k, v, gate and up.
  // GPT-2's c_attn is one projection, so its tensor is one matrix.
  const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t cols, float std_dev,
                          std::vector<std::int64_t> parts = {}) {
    plan.tensors.push_back(
        {prefix + name + ".weight", {rows, cols}, Init::kNormal, std_dev, true, true});
    if (shape.is_llama()) plan.tensors.back().matrix_rows = std::move(parts);
    return plan.tensors.size() - 1;
  };
  const auto take = [&](std::size_t tensor, const std::vector<std::int64_t>& runs) {
    plan.tensors[tensor] = take_rows(std::move(plan.tensors[tensor]), share, runs);
  };
  const auto take_all_heads = [&](std::size_t tensor) {
    plan.tensors[tensor] = take_heads(std::move(plan.tensors[tensor]), share,
                                      {shape.heads, shape.kv_heads, shape.head_dim()});
  };
  const auto take_inputs = [&](std::size_t tensor) {
    plan.tensors[tensor] = take_columns(std::move(plan.tensors[tensor]), share);
  };
  const auto vector = [&](const char* name, std::int64_t size, Init init) {
    plan.tensors.push_back({prefix + name, {size}, init, 0.0f, false});
    return plan.tensors.size() - 1;
  };
  // Matrices first: the short vectors then pack densely behind them.
  const std::int64_t kv_rows = shape.kv_heads * shape.head_dim();
  const std::vector<std::int64_t> up_runs =
      shape.is_llama() ? std::vector{shape.ffn, shape.ffn} : std::vector{shape.ffn};
  plan.at.qkv = matrix("attention.qkv", shape.qkv_cols(), shape.hidden, 0.02f,
                       {shape.heads * shape.head_dim(), kv_rows, kv_rows});
  plan.at.output = matrix("attention.output", shape.hidden, shape.hidden, residual_std);
  plan.at.up = matrix("mlp.up", up_rows, shape.hidden, 0.02f, {shape.ffn, shape.ffn});
  plan.at.down = matrix("mlp.down", shape.hidden, shape.ffn, residual_std);
  plan.at.norm1 = vector("norm1.weight", shape.hidden, Init::kOnes);
  plan.at.norm2 = vector("norm2.weight", shape.hidden, Init::kOnes);
  if (biased) {
    plan.at.norm1_bias = vector("norm1.bias", shape.hidden, Init::kZeros);
    plan.at.norm2_bias = vector("norm2.bias", shape.hidden, Init::kZeros);
    plan.at.qkv_bias = vector("attention.qkv.bias", shape.qkv_cols(), Init::kZeros);
    plan.at.output_bias = vector("attention.output.bias", shape.hidden, Init::kZeros);
    plan.at.up_bias = vector("mlp.up.bias", up_rows, Init::kZeros);
    plan.at.down_bias = vector("mlp.down.bias", shape.hidden, Init::kZeros);
    take_all_heads(plan.at.qkv_bias);
    take(plan.at.up_bias, up_runs);
  }
  take_all_heads(plan.at.qkv);
  take(plan.at.up, up_runs);
  take_inputs(plan.at.output);
  take_inputs(plan.at.down);
  return plan;
}

// The saved parts, in the order of the saved region.
enum BlockPart : std::uint8_t {
  kQkv,
  kLogSumExp,
  kMlpUp,
  kAttention,
  kResidual,
  kNorm1Mean,
  kNorm1Rstd,
  kNorm2Mean,
  kNorm2Rstd,
  kNormed1,
  kNormed2,
  kMlpHidden,
};
constexpr std::size_t kBlockPartCount = 12;

schedule::PartMask mask_of(std::initializer_list<BlockPart> parts) {
  schedule::PartMask mask = 0;
  for (const BlockPart part : parts) mask |= schedule::part_bit(part);
  return mask;
}

class BlockLayer final : public Layer {
 public:
  BlockLayer(const ModelShape& shape, BlockPlan plan, const TensorShare& share)
      : Layer(UnitLayout(std::move(plan.tensors))),
        shape_(shape),
        index_(plan.at),
        share_(share),
        heads_(share.part(shape.heads)),
        kv_heads_(share.kv_part(shape.kv_heads)),
        ffn_(share.part(shape.ffn)) {}

  std::vector<schedule::SavedPart> saves(const BatchShape& whole,
                                         const kernels::Kernels& kernels) const override {
    const BatchShape batch = share_.own_batch(whole);
    std::vector<schedule::SavedPart> saved = declared_parts(batch);
    const auto made = [&](std::initializer_list<BlockPart> made_parts, schedule::MadeBy made_by,
                          schedule::PartMask from) {
      for (const BlockPart part : made_parts) {
        saved[part].made_by = made_by;
        saved[part].made_from = from;
        saved[part].made_with = mask_of(made_parts);
      }
    };
    using schedule::MadeBy;
    made({kNormed1, kNorm1Mean, kNorm1Rstd}, MadeBy::kElementwise, schedule::kUnitInput);
    made({kQkv}, MadeBy::kProduct, mask_of({kNormed1}));
    made({kAttention, kLogSumExp}, MadeBy::kAttention, mask_of({kQkv}));
    made({kResidual}, MadeBy::kProduct, mask_of({kAttention}) | schedule::kUnitInput);
    made({kNormed2, kNorm2Mean, kNorm2Rstd}, MadeBy::kElementwise, mask_of({kResidual}));
    if (shape_.is_llama()) {
      made({kMlpUp}, MadeBy::kProduct, mask_of({kNormed2}));
      made({kMlpHidden}, MadeBy::kElementwise, mask_of({kMlpUp}));
      return saved;
    }
    // GPT-2's product makes both. Its activation can be made again alone only if it is that of the
    // rounded product.
    made({kMlpUp, kMlpHidden}, MadeBy::kProduct, mask_of({kNormed2}));
    if (kernels.gelu_reads_rounded(batch.dtype)) {
      made({kMlpHidden}, MadeBy::kElementwise, mask_of({kMlpUp}));
    }
    return saved;
  }

  PassNeeds needs(const BatchShape& whole, const kernels::Kernels& kernels) const override {
    const BatchShape batch = share_.own_batch(whole);
    PassNeeds needs;
    needs.output_bytes = own_act(batch, shape_.hidden);
    needs.saved_bytes = saved_bytes(declared_parts(batch));
    Region context;
    needs.segments = declared_segments(batch, cut_context(batch, context));
    needs.context_bytes = context.used_bytes();
    const std::uint64_t attention = share_.passes_keys()
                                        ? ring(batch).scratch_bytes(kernels)
                                        : kernels.attention_workspace_bytes(attention_shape(batch));
    const auto largest = [&](std::initializer_list<kernels::GemmShape> gemms, std::uint64_t other) {
      for (const kernels::GemmShape& gemm : gemms) {
        other = std::max(other, kernels.gemm_workspace_bytes(gemm));
      }
      return other;
    };
    needs.forward_workspace_bytes =
        act(batch, shape_.hidden) + kTensorAlignmentBytes + rows_bytes(batch) +
        largest({linear(batch, qkv_cols(), shape_.hidden),
                 linear(batch, shape_.hidden, attention_cols()),
                 linear(batch, up_cols(), shape_.hidden), linear(batch, shape_.hidden, ffn_)},
                attention);
    needs.backward_input_workspace_bytes =
        gradients_workspace_bytes(batch) +
        largest({linear_input(batch, qkv_cols(), shape_.hidden),
                 linear_input(batch, shape_.hidden, attention_cols()),
                 linear_input(batch, up_cols(), shape_.hidden),
                 linear_input(batch, shape_.hidden, ffn_)},
                attention);
    Region gathered;
    cut_gathered(batch, gathered);
    needs.backward_weight_workspace_bytes =
        gathered.used_bytes() + largest({linear_weight(batch, qkv_cols(), shape_.hidden),
                                         linear_weight(batch, shape_.hidden, attention_cols()),
                                         linear_weight(batch, up_cols(), shape_.hidden),
                                         linear_weight(batch, shape_.hidden, ffn_)},
                                        0);
    return needs;
  }

  void forward(kernels::Kernels& kernels, const BatchShape& whole,
               const PassBuffers& at) const override {
    const BatchShape batch = share_.own_batch(whole);
    const Saved saved = cut_saved(batch, at.saved);
    make_parts(kernels, batch, at, saved, (schedule::PartMask{1} << kBlockPartCount) - 1);
    Region workspace(at.workspace);
    std::byte* projected = workspace.take(act(batch, shape_.hidden));
    std::byte* scratch = take_rows(batch, workspace).scratch;
    if (runs(at, kMlp)) {
      kernels.gemm(linear(batch, shape_.hidden, ffn_), saved.activated,
                   weight(at, index_.down, batch.dtype), summed_bias(at, index_.down_bias, batch),
                   projected, scratch);
    }
    if (!runs(at, kEnd)) return;
    kernels.add(saved.residual, own(batch, projected), at.output, own_elems(batch), batch.dtype);
  }

  void recompute(kernels::Kernels& kernels, const BatchShape& whole,
                 const PassBuffers& at) const override {
    const BatchShape batch = share_.own_batch(whole);
    // With its output, a recompute is the forward pass. Only the last segment has the output; one that
    // ends before it stands before the sum that the output is made of.
    const bool makes_output = at.output != nullptr || at.segments.end == place_of(kEnd);
    if (makes_output) return forward(kernels, whole, at);
    make_parts(kernels, batch, at, cut_saved(batch, at.saved), at.remade);
  }

  void backward_input(kernels::Kernels& kernels, const BatchShape& whole,
                      const PassBuffers& at) const override {
    const BatchShape batch = share_.own_batch(whole);
    const Saved saved = cut_saved(batch, at.saved);
    Region context_region(at.context);
    const Context context = cut_context(batch, context_region);
    Region workspace(at.workspace);
    const Gradients gradients = take_gradients(batch, workspace);
    std::byte* const wide = gradients.wide;
    std::byte* const scratch = gradients.scratch;
    const DType dtype = batch.dtype;

    if (runs(at, kOutputBackward) && share_.cuts_rows()) {
      copy_own(kernels, batch, at.grad_output, context.output);
    }
    if (runs(at, kMlpBackward)) {
      const kernels::GemmShape down = linear_input(batch, shape_.hidden, ffn_);
      const std::byte* output = output_gradient(at, context);
      if (shape_.is_llama()) {
        kernels.gemm(down, output, weight(at, index_.down, dtype), nullptr, wide, scratch);
        kernels.swiglu_backward(wide, saved.up, context.up, batch.rows(), ffn_, dtype);
      } else {
        kernels.gemm_gelu_backward(down, output, weight(at, index_.down, dtype), saved.up,
                                   context.up, scratch);
      }
      kernels.gemm(linear_input(batch, up_cols(), shape_.hidden), context.up,
                   weight(at, index_.up, dtype), nullptr, context.normed2, scratch);
    }
    if (runs(at, kNorm2Backward)) {
      kernels.norm_backward_input(norm_shape(batch), own(batch, context.normed2), saved.residual,
                                  weight(at, index_.norm2, dtype), saved.mean2, saved.rstd2,
                                  at.grad_output, own(batch, context.residual));
    }
    if (runs(at, kAttentionBackward)) {
      kernels.gemm(linear_input(batch, shape_.hidden, attention_cols()), context.residual,
                   weight(at, index_.output, dtype), nullptr, wide, scratch);
      if (share_.exchanges_heads()) {
        to_heads(kernels, batch, {heads_}, wide, context.attention);
      }
    }
    if (share_.passes_keys()) {
      pass_keys_backward(kernels, batch, at, saved, gradients, context.qkv);
    } else if (runs(at, kHeadsBackward)) {
      kernels.attention_backward(attention_shape(batch),
                                 share_.exchanges_heads() ? context.attention : wide, saved.qkv,
                                 saved.attention, saved.log_sum_exp, context.qkv, scratch);
      if (shape_.is_llama()) kernels.rope(attention_shape(batch), kRopeBase, true, context.qkv);
    }
    if (runs(at, kQkvBackward)) {
      if (share_.exchanges_heads()) {
        to_rows(kernels, batch, qkv_heads(), context.qkv, context.qkv_rows);
      }
      kernels.gemm(linear_input(batch, qkv_cols(), shape_.hidden), qkv_gradient(context),
                   weight(at, index_.qkv, dtype), nullptr, context.normed1, scratch);
    }
    if (!runs(at, kEndBackward)) return;
    kernels.norm_backward_input(norm_shape(batch), own(batch, context.normed1), at.input,
                                weight(at, index_.norm1, dtype), saved.mean1, saved.rstd1,
                                own(batch, context.residual), at.grad_input);
  }

  void backward_weight(kernels::Kernels& kernels, const BatchShape& whole,
                       const PassBuffers& at) const override {
    const BatchShape batch = share_.own_batch(whole);
    const Saved saved = cut_saved(batch, at.saved);
    Region context_region(at.context);
    const Context context = cut_context(batch, context_region);
    Region workspace(at.workspace);
    const Gathered gathered = cut_gathered(batch, workspace);
    std::byte* scratch = workspace.take(0);
    if (at.segments.has(kInputs) && share_.cuts_rows()) {
      copy_own(kernels, batch, saved.normed1, gathered.normed1);
      copy_own(kernels, batch, saved.normed2, gathered.normed2);
    }
    if (!at.segments.has(kProducts)) return;
    const DType dtype = batch.dtype;
    clear_gaps(kernels, at.grad_weights, dtype);

    const auto gradient = [&](std::int64_t out, std::int64_t in, const std::byte* dy,
                              const std::byte* x, std::size_t of, std::size_t of_bias) {
      linear_gradient(kernels, batch, at, out, in, dy, x, of, of_bias, scratch);
    };
    const bool cut = share_.cuts_rows();
    gradient(shape_.hidden, ffn_, output_gradient(at, context), saved.activated, index_.down,
             index_.down_bias);
    gradient(up_cols(), shape_.hidden, context.up, cut ? gathered.normed2 : saved.normed2,
             index_.up, index_.up_bias);
    if (share_.exchanges_heads()) {
      to_rows(kernels, batch, {heads_}, heads_of_rows(batch, saved), gathered.attention);
    }
    gradient(shape_.hidden, attention_cols(), context.residual,
             share_.exchanges_heads() ? gathered.attention : saved.attention, index_.output,
             index_.output_bias);
    gradient(qkv_cols(), shape_.hidden, qkv_gradient(context),
             cut ? gathered.normed1 : saved.normed1, index_.qkv, index_.qkv_bias);
    kernels.norm_backward_weight(
        norm_shape(batch), own(batch, context.normed2), saved.residual, saved.mean2, saved.rstd2,
        tensor(at.grad_weights, index_.norm2, dtype), bias_gradient(at, index_.norm2_bias, dtype));
    kernels.norm_backward_weight(
        norm_shape(batch), own(batch, context.normed1), at.input, saved.mean1, saved.rstd1,
        tensor(at.grad_weights, index_.norm1, dtype), bias_gradient(at, index_.norm1_bias, dtype));
  }

 private:
  // The segments of a forward pass, of BackwardInput, and of BackwardWeight.
  enum Segment : std::int32_t { kNorm1, kQkvProduct, kHeads, kOutputProduct, kNorm2, kMlp, kEnd };
  enum BackwardSegment : std::int32_t {
    kOutputBackward,
    kMlpBackward,
    kNorm2Backward,
    kAttentionBackward,
    kHeadsBackward,
    kQkvBackward,
    kEndBackward
  };
  enum WeightSegment : std::int32_t { kInputs, kProducts };
  // Ranks that pass keys round a ring have segments for its hops. The last part of a forward pass ends
  // in kHeads, and the first part of a backward pass begins behind the hop that follows
  // kAttentionBackward.
  std::int32_t hops() const {
    return share_.passes_keys() ? static_cast<std::int32_t>(share_.contexts) - 1 : 0;
  }
  std::int32_t place_of(Segment segment) const {
    return segment < kHeads || hops() == 0 ? segment : segment + hops() - 1;
  }
  std::int32_t place_of(BackwardSegment segment) const {
    return segment < kHeadsBackward ? segment : segment + hops();
  }
  template <typename AnySegment>
  bool runs(const PassBuffers& at, AnySegment segment) const {
    return at.segments.has(place_of(segment));
  }
  RingAttention ring(const BatchShape& batch) const { return {share_, attention_shape(batch)}; }

  struct Saved {
    std::byte *normed1, *qkv, *attention, *residual, *normed2, *up, *activated;
    float *mean1, *rstd1, *log_sum_exp, *mean2, *rstd2;
  };
  // The gradients that BackwardWeight needs: those of each linear layer's and each norm's output.
  // If rows are cut, also that of the output, of all rows.
  struct Context {
    std::byte *up, *normed2, *residual, *qkv, *normed1, *output, *attention, *qkv_rows;
    // In the region.
    std::uint64_t normed2_begin, residual_begin, qkv_begin, normed1_begin, output_begin,
        attention_begin;
  };
  // In BackwardWeight's workspace: the norms' outputs of all rows, if rows are cut.
  struct Gathered {
    std::byte *normed1, *normed2, *attention;
    std::uint64_t normed1_begin, normed2_begin;
  };
  // In a forward pass's workspace behind the product: qkv or attention's output of the rank's rows, if
  // heads are exchanged, or the ring's.
  struct Rows {
    std::byte *rows, *scratch;
    RingAttention::Forward ring;
  };
  Rows take_rows(const BatchShape& batch, Region& workspace) const {
    Rows taken{};
    if (share_.exchanges_heads()) taken.rows = workspace.take(act(batch, qkv_cols()));
    if (share_.passes_keys()) taken.ring = ring(batch).take_forward(workspace);
    taken.scratch = workspace.take(0);
    return taken;
  }
  // In BackwardInput's workspace: the gradient of SwiGLU's or of attention's output, and the ring's.
  struct Gradients {
    std::byte *wide, *scratch;
    RingAttention::Backward ring;
  };
  Gradients take_gradients(const BatchShape& batch, Region& workspace) const {
    Gradients taken{};
    taken.wide = workspace.take(act(batch, widest_gradient()));
    if (share_.passes_keys()) taken.ring = ring(batch).take_backward(workspace);
    taken.scratch = workspace.take(0);
    return taken;
  }
  std::uint64_t gradients_workspace_bytes(const BatchShape& batch) const {
    Region workspace;
    take_gradients(batch, workspace);
    return workspace.used_bytes();
  }
  std::uint64_t rows_bytes(const BatchShape& batch) const {
    Region workspace;
    take_rows(batch, workspace);
    return workspace.used_bytes();
  }

  std::vector<schedule::SavedPart> declared_parts(const BatchShape& batch) const {
    const auto padded = [](std::uint64_t bytes) { return round_up(bytes, kTensorAlignmentBytes); };
    const auto wide = [&](std::int64_t cols) { return padded(act(batch, cols)); };
    const auto narrow = padded(own_act(batch, shape_.hidden));
    const std::uint64_t stats = padded(static_cast<std::uint64_t>(own_rows(batch)) * sizeof(float));
    const std::uint64_t by_head = rows(batch) * sizeof(float) * static_cast<std::uint64_t>(heads_);
    constexpr schedule::SavedFor kInput = schedule::SavedFor::kBackwardInput;
    constexpr schedule::SavedFor kWeight = schedule::SavedFor::kBackwardWeight;
    std::vector<schedule::SavedPart> parts(kBlockPartCount);
    parts[kQkv] = {"qkv", wide(qkv_cols()), kInput};
    parts[kLogSumExp] = {"log_sum_exp", padded(by_head), kInput};
    parts[kMlpUp] = {"mlp_up", wide(up_cols()), kInput};
    // If heads are exchanged: their output of all rows, then all heads' of the rank's rows.
    parts[kAttention] = {"attention", (share_.exchanges_heads() ? 2 : 1) * wide(attention_cols())};
    parts[kResidual] = {"residual", narrow};
    parts[kNorm1Mean] = {"norm1_mean", stats};
    parts[kNorm1Rstd] = {"norm1_rstd", stats};
    parts[kNorm2Mean] = {"norm2_mean", stats};
    parts[kNorm2Rstd] = {"norm2_rstd", stats};
    parts[kNormed1] = {"normed1", narrow, kWeight};
    parts[kNormed2] = {"normed2", narrow, kWeight};
    parts[kMlpHidden] = {"mlp_hidden", wide(ffn_), kWeight};
    return parts;
  }

  // All cuts but those of the norms' gradients are of [rows, hidden] elements. Outputs of the
  // row-parallel products and inputs of the column-parallel ones lie at the start of the workspace, the
  // gradients of these in the context. context: with a null base.
  schedule::UnitSegments declared_segments(const BatchShape& batch, const Context& context) const {
    const auto cut = [&](schedule::CutKind kind, schedule::CutValue value, std::uint64_t begin,
                         schedule::PartMask parts) {
      return schedule::Cut{kind, value, begin, rows(batch) * width(), batch.dtype, parts};
    };
    using schedule::CutValue;
    const auto gather = [&](CutValue value, std::uint64_t begin, schedule::PartMask parts) {
      std::vector<schedule::Cut> cuts;
      if (share_.cuts_rows()) cuts.push_back(cut(schedule::CutKind::kGather, value, begin, parts));
      return cuts;
    };
    const auto sum = [&](CutValue value, std::uint64_t begin, schedule::PartMask parts) {
      std::vector<schedule::Cut> cuts;
      if (share_.adds_products()) cuts.push_back(cut(share_.sum(), value, begin, parts));
      return cuts;
    };
    const auto exchange = [&](CutValue value, std::uint64_t begin, std::int64_t cols,
                              schedule::PartMask parts) {
      std::vector<schedule::Cut> cuts;
      if (!share_.exchanges_heads()) return cuts;
      cuts.push_back({schedule::CutKind::kExchange, value, begin,
                      rows(batch) * static_cast<std::uint64_t>(cols), batch.dtype, parts,
                      schedule::CutRanks::kContext});
      return cuts;
    };
    const std::vector<schedule::SavedPart> saved = declared_parts(batch);
    const std::uint64_t attention_begin =
        saved_begin(saved, kAttention) + saved[kAttention].bytes / 2;
    Region workspace;
    const Gathered gathered = cut_gathered(batch, workspace);
    std::vector<schedule::Cut> inputs = gather(CutValue::kWorkspace, gathered.normed1_begin, 0);
    for (const schedule::Cut& other : gather(CutValue::kWorkspace, gathered.normed2_begin, 0)) {
      inputs.push_back(other);
    }
    schedule::UnitSegments segments;
    segments.forward = {
        gather(CutValue::kWorkspace, 0, mask_of({kQkv})),
        exchange(CutValue::kSaved, saved_begin(saved, kQkv), qkv_cols(), mask_of({kQkv})),
        exchange(CutValue::kSaved, attention_begin, attention_cols(), mask_of({kAttention})),
        sum(CutValue::kWorkspace, 0, mask_of({kResidual})),
        gather(CutValue::kWorkspace, 0, mask_of({kMlpUp})),
        sum(CutValue::kWorkspace, 0, 0),
        {}};
    segments.backward_input = {
        gather(CutValue::kContext, context.output_begin, 0),
        sum(CutValue::kContext, context.normed2_begin, 0),
        gather(CutValue::kContext, context.residual_begin, 0),
        exchange(CutValue::kContext, context.attention_begin, attention_cols(), 0),
        exchange(CutValue::kContext, context.qkv_begin, qkv_cols(), 0),
        sum(CutValue::kContext, context.normed1_begin, 0),
        {}};
    segments.backward_weight = {std::move(inputs), norm_sums(batch)};
    for (const schedule::Cut& sum_of_copies : copy_sums(batch)) {
      segments.backward_weight.back().push_back(sum_of_copies);
    }
    for (const schedule::Cut& sum_of_all : share_.gradient_sum(layout(), batch.dtype)) {
      segments.backward_weight.back().push_back(sum_of_all);
    }
    if (share_.passes_keys()) add_hops(batch, segments);
    return segments;
  }
  // The hops of the ring, behind the segments that make what they pass on.
  void add_hops(const BatchShape& batch, schedule::UnitSegments& segments) const {
    Region workspace, gradients;
    workspace.take(act(batch, shape_.hidden));
    const RingAttention::Forward forward = take_rows(batch, workspace).ring;
    const RingAttention::Backward backward = take_gradients(batch, gradients).ring;
    auto& heads = segments.forward;
    heads.insert(heads.begin() + kHeads, static_cast<std::size_t>(hops() - 1), {});
    auto& back = segments.backward_input;
    back.insert(back.begin() + kHeadsBackward, static_cast<std::size_t>(hops()), {});
    for (std::int32_t hop = 1; hop <= hops() + 1; ++hop) {
      const auto before = static_cast<std::size_t>(hop - 1);
      if (hop <= hops()) {
        heads[kQkvProduct + before] =
            ring(batch).forward_cuts(forward, mask_of({kAttention, kLogSumExp}));
      }
      back[kAttentionBackward + before] = ring(batch).backward_cuts(backward, hop);
    }
  }
  static std::uint64_t saved_begin(const std::vector<schedule::SavedPart>& parts, BlockPart part) {
    std::uint64_t begin = 0;
    for (std::size_t before = 0; before < part; ++before) begin += parts[before].bytes;
    return begin;
  }
  // The gradients of the norms' weights, which the ranks of cut rows have of their rows.
  std::vector<schedule::Cut> norm_sums(const BatchShape& batch) const {
    std::vector<schedule::Cut> sums;
    for (const PlacedTensor& norm : layout().tensors()) {
      if (!share_.cuts_rows() || norm.spec.name.find(".norm") == std::string::npos) continue;
      sums.push_back({schedule::CutKind::kSum, schedule::CutValue::kGradient,
                      norm.first_elem * dtype_bytes(batch.dtype), norm.spec.elems(), batch.dtype,
                      0});
    }
    return sums;
  }
  // The gradients of key/value heads that several ranks hold, each of its own query heads.
  std::vector<schedule::Cut> copy_sums(const BatchShape& batch) const {
    std::vector<schedule::Cut> sums;
    if (share_.sharers(shape_.kv_heads) == 1) return sums;
    std::vector<std::size_t> tensors{index_.qkv};
    if (!shape_.is_llama()) tensors.push_back(index_.qkv_bias);
    for (const std::size_t index : tensors) {
      const PlacedTensor& qkv = layout().tensors()[index];
      const TensorBox& queries = qkv.spec.boxes.front();
      const auto first = static_cast<std::uint64_t>(queries.rows * queries.cols);
      schedule::Cut sum{schedule::CutKind::kSum, schedule::CutValue::kGradient,
                        (qkv.first_elem + first) * dtype_bytes(batch.dtype),
                        qkv.spec.elems() - first, batch.dtype};
      sum.among = schedule::CutRanks::kSharers;
      sums.push_back(sum);
    }
    return sums;
  }

  // Makes the wanted parts, each from the parts before it. The others are there already, as far as
  // a wanted part is made from them.
  void make_parts(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                  const Saved& saved, schedule::PartMask wanted) const {
    const auto wants = [&](BlockPart part) { return (wanted & schedule::part_bit(part)) != 0; };
    Region workspace(at.workspace);
    std::byte* projected = workspace.take(act(batch, shape_.hidden));
    const Rows rows = take_rows(batch, workspace);
    std::byte* const scratch = rows.scratch;
    const DType dtype = batch.dtype;
    const bool cut = share_.cuts_rows();
    if (runs(at, kNorm1)) {
      if (wants(kNormed1)) {
        kernels.norm_forward(norm_shape(batch), at.input, weight(at, index_.norm1, dtype),
                             bias(at, index_.norm1_bias, dtype), saved.normed1, saved.mean1,
                             saved.rstd1);
      }
      if (cut && wants(kQkv)) copy_own(kernels, batch, saved.normed1, projected);
    }
    make_attention(kernels, batch, at, saved, wanted, projected, rows);
    if (runs(at, kNorm2)) {
      if (wants(kResidual)) {
        kernels.add(at.input, own(batch, projected), saved.residual, own_elems(batch), dtype);
      }
      if (wants(kNormed2)) {
        kernels.norm_forward(norm_shape(batch), saved.residual, weight(at, index_.norm2, dtype),
                             bias(at, index_.norm2_bias, dtype), saved.normed2, saved.mean2,
                             saved.rstd2);
      }
      if (cut && wants(kMlpUp)) copy_own(kernels, batch, saved.normed2, projected);
    }
    if (!runs(at, kMlp)) return;
    make_mlp(kernels, batch, at, saved, cut ? projected : saved.normed2, wants(kMlpUp),
             wants(kMlpHidden), scratch);
  }

  // The parts from qkv to the product of the residual, which stays in `projected`. Gathered rows lie
  // there before.
  void make_attention(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                      const Saved& saved, schedule::PartMask wanted, std::byte* projected,
                      const Rows& room) const {
    const auto wants = [&](BlockPart part) { return (wanted & schedule::part_bit(part)) != 0; };
    const DType dtype = batch.dtype;
    const bool cut = share_.exchanges_heads();
    std::byte* const scratch = room.scratch;
    if (runs(at, kQkvProduct) && wants(kQkv)) {
      kernels.gemm(linear(batch, qkv_cols(), shape_.hidden),
                   share_.cuts_rows() ? projected : saved.normed1, weight(at, index_.qkv, dtype),
                   bias(at, index_.qkv_bias, dtype), cut ? room.rows : saved.qkv, scratch);
      if (cut) to_heads(kernels, batch, qkv_heads(), room.rows, saved.qkv);
    }
    if (share_.passes_keys()) {
      pass_keys(kernels, batch, at, saved, wanted, room);
    } else if (runs(at, kHeads)) {
      if (wants(kQkv) && shape_.is_llama()) {
        kernels.rope(attention_shape(batch), kRopeBase, false, saved.qkv);
      }
      if (wants(kAttention)) {
        kernels.attention_forward(attention_shape(batch), saved.qkv, saved.attention,
                                  saved.log_sum_exp, scratch);
        if (cut) {
          kernels.cast(saved.attention, dtype, heads_of_rows(batch, saved), dtype, false,
                       batch.rows() * attention_cols());
        }
      }
    }
    if (!runs(at, kOutputProduct) || !wants(kResidual)) return;
    if (cut) to_rows(kernels, batch, {heads_}, heads_of_rows(batch, saved), room.rows);
    kernels.gemm(linear(batch, shape_.hidden, attention_cols()), cut ? room.rows : saved.attention,
                 weight(at, index_.output, dtype), summed_bias(at, index_.output_bias, batch),
                 projected, scratch);
  }

  // Attention of the rank's rows, a part behind each hop; that to its own keys comes before the first.
  void pass_keys(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                 const Saved& saved, schedule::PartMask wanted, const Rows& room) const {
    const RingAttention attention = ring(batch);
    if (runs(at, kQkvProduct) && shape_.is_llama() && (wanted & schedule::part_bit(kQkv)) != 0) {
      attention.rope(kernels, kRopeBase, false, saved.qkv);
    }
    if ((wanted & schedule::part_bit(kAttention)) == 0) return;
    for (std::int32_t hop = 0; hop <= hops(); ++hop) {
      if (!at.segments.has(kQkvProduct + hop)) continue;
      attention.forward(kernels, hop, saved.qkv, room.ring, saved.log_sum_exp, saved.attention,
                        room.scratch);
    }
  }
  void pass_keys_backward(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                          const Saved& saved, const Gradients& room, std::byte* dqkv) const {
    const RingAttention attention = ring(batch);
    if (runs(at, kAttentionBackward)) attention.start_backward(kernels, saved.qkv, room.ring);
    for (std::int32_t hop = 1; hop <= hops() + 1; ++hop) {
      if (!at.segments.has(kAttentionBackward + hop)) continue;
      attention.backward(kernels, hop, {room.wide, saved.qkv, saved.attention, saved.log_sum_exp},
                         room.ring, dqkv, room.scratch);
    }
    if (!runs(at, kHeadsBackward) || !shape_.is_llama()) return;
    attention.rope(kernels, kRopeBase, true, dqkv);
  }

  // Heads of each section of a row: q, k and v, or attention's output.
  std::vector<std::int64_t> qkv_heads() const { return {heads_, kv_heads_, kv_heads_}; }
  // All heads of the rank's rows, from or to the parts that the context ranks exchange: part r has the
  // heads of rank r.
  void to_heads(kernels::Kernels& kernels, const BatchShape& batch,
                const std::vector<std::int64_t>& sections, const std::byte* rows,
                std::byte* parts) const {
    for_sections(batch, sections,
                 [&](std::uint64_t part, kernels::Kernels::Columns of_rows,
                     kernels::Kernels::Columns of_part, std::int64_t cols) {
                   kernels.copy_columns(rows, of_rows, parts + part, of_part, batch.rows(), cols,
                                        batch.dtype);
                 });
  }
  void to_rows(kernels::Kernels& kernels, const BatchShape& batch,
               const std::vector<std::int64_t>& sections, const std::byte* parts,
               std::byte* rows) const {
    for_sections(batch, sections,
                 [&](std::uint64_t part, kernels::Kernels::Columns of_rows,
                     kernels::Kernels::Columns of_part, std::int64_t cols) {
                   kernels.copy_columns(parts + part, of_part, rows, of_rows, batch.rows(), cols,
                                        batch.dtype);
                 });
  }
  // Calls f(first byte of the part, columns of the rows, of the part, number) for each section.
  template <typename F>
  void for_sections(const BatchShape& batch, const std::vector<std::int64_t>& sections, F f) const {
    std::int64_t heads = 0;
    for (const std::int64_t section : sections) heads += section;
    const std::int64_t width = heads * shape_.head_dim(), ranks = share_.contexts;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::uint64_t part = act(batch, width / ranks) * static_cast<std::uint64_t>(rank);
      std::int64_t in_rows = 0, in_part = 0;
      for (const std::int64_t section : sections) {
        const std::int64_t cols = section / ranks * shape_.head_dim();
        f(part, {in_rows + rank * cols, width}, {in_part, width / ranks}, cols);
        in_rows += section * shape_.head_dim();
        in_part += cols;
      }
    }
  }
  // The second half of the saved attention.
  std::byte* heads_of_rows(const BatchShape& batch, const Saved& saved) const {
    return saved.attention + round_up(act(batch, attention_cols()), kTensorAlignmentBytes);
  }
  const std::byte* qkv_gradient(const Context& context) const {
    return share_.exchanges_heads() ? context.qkv_rows : context.qkv;
  }

  void make_mlp(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                const Saved& saved, const std::byte* input, bool wants_up, bool wants_hidden,
                std::byte* scratch) const {
    const DType dtype = batch.dtype;
    const kernels::GemmShape up = linear(batch, up_cols(), shape_.hidden);
    if (shape_.is_llama()) {
      if (wants_up) {
        kernels.gemm(up, input, weight(at, index_.up, dtype), nullptr, saved.up, scratch);
      }
      if (wants_hidden) {
        kernels.swiglu_forward(saved.up, saved.activated, batch.rows(), ffn_, dtype);
      }
    } else if (wants_up) {
      kernels.gemm_gelu(up, input, weight(at, index_.up, dtype), bias(at, index_.up_bias, dtype),
                        saved.up, saved.activated, scratch);
    } else if (wants_hidden) {
      SLUICE_CHECK(kernels.gelu_reads_rounded(dtype));
      kernels.gelu_forward(saved.up, saved.activated, batch.rows() * ffn_, dtype);
    }
  }

  std::uint64_t rows(const BatchShape& batch) const {
    return static_cast<std::uint64_t>(batch.rows());
  }
  std::uint64_t act(const BatchShape& batch, std::int64_t cols) const {
    return rows(batch) * static_cast<std::uint64_t>(cols) * dtype_bytes(batch.dtype);
  }
  // Rows of this rank, outside of the products.
  std::int64_t own_rows(const BatchShape& batch) const { return share_.own_rows(batch.rows()); }
  std::int64_t own_elems(const BatchShape& batch) const { return own_rows(batch) * shape_.hidden; }
  std::uint64_t own_act(const BatchShape& batch, std::int64_t cols) const {
    return static_cast<std::uint64_t>(own_rows(batch) * cols) * dtype_bytes(batch.dtype);
  }
  std::uint64_t width() const { return static_cast<std::uint64_t>(shape_.hidden); }
  std::byte* own(const BatchShape& batch, std::byte* all) const {
    return share_.own_part(all, batch.rows(), shape_.hidden, batch.dtype);
  }
  // Puts this rank's rows into their place among all rows.
  void copy_own(kernels::Kernels& kernels, const BatchShape& batch, const std::byte* rows,
                std::byte* all) const {
    kernels.cast(rows, batch.dtype, own(batch, all), batch.dtype, false, own_elems(batch));
  }
  const std::byte* output_gradient(const PassBuffers& at, const Context& context) const {
    return share_.cuts_rows() ? context.output : at.grad_output;
  }
  // Columns of this rank.
  std::int64_t up_cols() const { return shape_.is_llama() ? 2 * ffn_ : ffn_; }
  std::int64_t attention_cols() const { return heads_ * shape_.head_dim(); }
  std::int64_t qkv_cols() const { return (heads_ + 2 * kv_heads_) * shape_.head_dim(); }
  // The columns of the widest gradient that only BackwardInput holds: that of SwiGLU's output or
  // of attention's output.
  std::int64_t widest_gradient() const {
    return shape_.is_llama() ? std::max(ffn_, attention_cols()) : attention_cols();
  }

  Saved cut_saved(const BatchShape& batch, const SavedRanges& ranges) const {
    const std::vector<schedule::SavedPart> saved_parts = declared_parts(batch);
    SavedRegion region(saved_parts, ranges);
    Saved saved{};
    // In the order of BlockPart.
    saved.qkv = region.take();
    saved.log_sum_exp = region.take_floats();
    saved.up = region.take();
    saved.attention = region.take();
    saved.residual = region.take();
    saved.mean1 = region.take_floats();
    saved.rstd1 = region.take_floats();
    saved.mean2 = region.take_floats();
    saved.rstd2 = region.take_floats();
    saved.normed1 = region.take();
    saved.normed2 = region.take();
    saved.activated = region.take();
    return saved;
  }

  Context cut_context(const BatchShape& batch, Region& region) const {
    Context context{};
    context.up = region.take(act(batch, up_cols()));
    context.normed2_begin = region.used_bytes();
    context.normed2 = region.take(act(batch, shape_.hidden));
    context.residual_begin = region.used_bytes();
    context.residual = region.take(act(batch, shape_.hidden));
    context.qkv_begin = region.used_bytes();
    context.qkv = region.take(act(batch, qkv_cols()));
    context.normed1_begin = region.used_bytes();
    context.normed1 = region.take(act(batch, shape_.hidden));
    context.output_begin = region.used_bytes();
    if (share_.cuts_rows()) context.output = region.take(act(batch, shape_.hidden));
    context.attention_begin = region.used_bytes();
    if (share_.exchanges_heads()) {
      context.attention = region.take(act(batch, attention_cols()));
      context.qkv_rows = region.take(act(batch, qkv_cols()));
    }
    return context;
  }

  Gathered cut_gathered(const BatchShape& batch, Region& region) const {
    Gathered gathered{};
    if (share_.exchanges_heads()) gathered.attention = region.take(act(batch, attention_cols()));
    if (!share_.cuts_rows()) return gathered;
    gathered.normed1_begin = region.used_bytes();
    gathered.normed1 = region.take(act(batch, shape_.hidden));
    gathered.normed2_begin = region.used_bytes();
    gathered.normed2 = region.take(act(batch, shape_.hidden));
    return gathered;
  }

  kernels::NormShape norm_shape(const BatchShape& batch) const {
    return {own_rows(batch), shape_.hidden, shape_.is_llama(), kNormEpsilon, batch.dtype};
  }
  kernels::AttentionShape attention_shape(const BatchShape& batch) const {
    const std::int64_t ranks = share_.exchanges_heads() ? share_.contexts : 1;
    return {batch.micro_batch, batch.seq * ranks, heads_ / ranks,
            kv_heads_ / ranks, shape_.head_dim(), batch.dtype};
  }

  // A linear layer with weight [out, in]: y = x w^T; dx = dy w; dw = dy^T x.
  kernels::GemmShape linear(const BatchShape& batch, std::int64_t out, std::int64_t in) const {
    return {batch.rows(), out, in, false, true, batch.dtype, batch.dtype};
  }
  kernels::GemmShape linear_input(const BatchShape& batch, std::int64_t out,
                                  std::int64_t in) const {
    return {batch.rows(), in, out, false, false, batch.dtype, batch.dtype};
  }
  kernels::GemmShape linear_weight(const BatchShape& batch, std::int64_t out,
                                   std::int64_t in) const {
    return {out, in, batch.rows(), true, false, batch.dtype, batch.dtype};
  }

  const std::byte* weight(const PassBuffers& at, std::size_t index, DType dtype) const {
    return tensor(at.weights, index, dtype);
  }
  const std::byte* bias(const PassBuffers& at, std::size_t index, DType dtype) const {
    return shape_.is_llama() ? nullptr : tensor(at.weights, index, dtype);
  }
  // The bias behind a sum over the ranks, which one of them adds.
  const std::byte* summed_bias(const PassBuffers& at, std::size_t index,
                               const BatchShape& batch) const {
    return share_.is_first() ? bias(at, index, batch.dtype) : nullptr;
  }
  std::byte* bias_gradient(const PassBuffers& at, std::size_t index, DType dtype) const {
    return shape_.is_llama() ? nullptr : tensor(at.grad_weights, index, dtype);
  }

  void linear_gradient(kernels::Kernels& kernels, const BatchShape& batch, const PassBuffers& at,
                       std::int64_t out, std::int64_t in, const std::byte* grad_output,
                       const std::byte* input, std::size_t weight_index, std::size_t bias_index,
                       std::byte* scratch) const {
    kernels.gemm(linear_weight(batch, out, in), grad_output, input, nullptr,
                 tensor(at.grad_weights, weight_index, batch.dtype), scratch);
    if (std::byte* grad = bias_gradient(at, bias_index, batch.dtype); grad != nullptr) {
      kernels.column_sum(grad_output, grad, batch.rows(), out, batch.dtype);
    }
  }

  ModelShape shape_;  // of the whole model
  BlockTensors index_;
  TensorShare share_;
  std::int64_t heads_, kv_heads_, ffn_;  // of this rank
};

}  // namespace

std::unique_ptr<Layer> make_block_layer(const ModelShape& shape, std::int64_t index,
                                        const TensorShare& share) {
  return std::make_unique<BlockLayer>(shape, plan_block(shape, index, share), share);
}

}  // namespace sluice::model
