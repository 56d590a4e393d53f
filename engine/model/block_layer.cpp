// The saved parts of a transformer block, and the memory of its passes.
#include "engine/model/block_layer.hpp"

#include <initializer_list>
#include <memory>

namespace sluice::model {

std::vector<schedule::SavedPart> BlockLayer::saves(const BatchShape& whole,
                                                   const kernels::Kernels& kernels) const {
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
  // GPT-2's product makes both. Its activation can be recomputed alone only if it is that of the
  // rounded product.
  made({kMlpUp, kMlpHidden}, MadeBy::kProduct, mask_of({kNormed2}));
  if (kernels.gelu_reads_rounded(batch.dtype)) {
    made({kMlpHidden}, MadeBy::kElementwise, mask_of({kMlpUp}));
  }
  return saved;
}

PassNeeds BlockLayer::needs(const BatchShape& whole, const kernels::Kernels& kernels) const {
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
      largest(
          {linear(batch, qkv_cols(), shape_.hidden), linear(batch, shape_.hidden, attention_cols()),
           linear(batch, up_cols(), shape_.hidden), linear(batch, shape_.hidden, ffn_)},
          attention);
  needs.backward_input_workspace_bytes =
      gradients_workspace_bytes(batch) +
      largest(
          {linear_input(batch, qkv_cols(), shape_.hidden),
           linear_input(batch, shape_.hidden, attention_cols()),
           linear_input(batch, up_cols(), shape_.hidden), linear_input(batch, shape_.hidden, ffn_)},
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

std::unique_ptr<Layer> make_block_layer(const ModelShape& shape, std::int64_t index,
                                        const TensorShare& share) {
  return std::make_unique<BlockLayer>(shape, plan_block(shape, index, share), share);
}

}  // namespace sluice::model
