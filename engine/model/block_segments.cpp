// What crosses between the ranks of a tensor or context group in a transformer block's passes.
#include <string>

#include "engine/model/block_layer.hpp"

namespace sluice::model {

schedule::UnitSegments BlockLayer::declared_segments(const BatchShape& batch,
                                                     const Context& context) const {
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

void BlockLayer::add_hops(const BatchShape& batch, schedule::UnitSegments& segments) const {
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

std::vector<schedule::Cut> BlockLayer::norm_sums(const BatchShape& batch) const {
  std::vector<schedule::Cut> sums;
  for (const PlacedTensor& norm : layout().tensors()) {
    if (!share_.cuts_rows() || norm.spec.name.find(".norm") == std::string::npos) continue;
    sums.push_back({schedule::CutKind::kSum, schedule::CutValue::kGradient,
                    norm.first_elem * dtype_bytes(batch.dtype), norm.spec.elems(), batch.dtype, 0});
  }
  return sums;
}

std::vector<schedule::Cut> BlockLayer::copy_sums(const BatchShape& batch) const {
  std::vector<schedule::Cut> sums;
  if (share_.sharers(shape_.kv_heads) == 1) return sums;
  std::vector<std::size_t> tensors{index_.qkv};
  if (!shape_.is_llama()) tensors.push_back(index_.qkv_bias);
  for (const std::size_t index : tensors) {
    const PlacedTensor& qkv = layout().tensors()[index];
    const TensorSlice& queries = qkv.spec.slices.front();
    const auto first = static_cast<std::uint64_t>(queries.rows * queries.cols);
    schedule::Cut sum{schedule::CutKind::kSum, schedule::CutValue::kGradient,
                      (qkv.first_elem + first) * dtype_bytes(batch.dtype), qkv.spec.elems() - first,
                      batch.dtype};
    sum.among = schedule::CutRanks::kSharers;
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace sluice::model
