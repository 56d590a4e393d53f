// The regions that a transformer block's passes cut their buffers into, and the parts that ranks
// exchange.
#include "engine/model/block_layer.hpp"

namespace sluice::model {

BlockLayer::Rows BlockLayer::take_rows(const BatchShape& batch, Region& workspace) const {
  Rows taken{};
  if (share_.exchanges_heads()) taken.rows = workspace.take(act(batch, qkv_cols()));
  if (share_.passes_keys()) taken.ring = ring(batch).take_forward(workspace);
  taken.scratch = workspace.take(0);
  return taken;
}

BlockLayer::Gradients BlockLayer::take_gradients(const BatchShape& batch, Region& workspace) const {
  Gradients taken{};
  taken.wide = workspace.take(act(batch, widest_gradient()));
  if (share_.passes_keys()) taken.ring = ring(batch).take_backward(workspace);
  taken.scratch = workspace.take(0);
  return taken;
}

std::uint64_t BlockLayer::gradients_workspace_bytes(const BatchShape& batch) const {
  Region workspace;
  take_gradients(batch, workspace);
  return workspace.used_bytes();
}

std::uint64_t BlockLayer::rows_bytes(const BatchShape& batch) const {
  Region workspace;
  take_rows(batch, workspace);
  return workspace.used_bytes();
}

std::vector<schedule::SavedPart> BlockLayer::declared_parts(const BatchShape& batch) const {
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

void BlockLayer::to_heads(kernels::Kernels& kernels, const BatchShape& batch,
                          const std::vector<std::int64_t>& sections, const std::byte* rows,
                          std::byte* parts) const {
  for_sections(batch, sections,
               [&](std::uint64_t part, kernels::Kernels::Columns of_rows,
                   kernels::Kernels::Columns of_part, std::int64_t cols) {
                 kernels.copy_columns(rows, of_rows, parts + part, of_part, batch.rows(), cols,
                                      batch.dtype);
               });
}

void BlockLayer::to_rows(kernels::Kernels& kernels, const BatchShape& batch,
                         const std::vector<std::int64_t>& sections, const std::byte* parts,
                         std::byte* rows) const {
  for_sections(batch, sections,
               [&](std::uint64_t part, kernels::Kernels::Columns of_rows,
                   kernels::Kernels::Columns of_part, std::int64_t cols) {
                 kernels.copy_columns(parts + part, of_part, rows, of_rows, batch.rows(), cols,
                                      batch.dtype);
               });
}

BlockLayer::Saved BlockLayer::cut_saved(const BatchShape& batch, const SavedRanges& ranges) const {
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

BlockLayer::Context BlockLayer::cut_context(const BatchShape& batch, Region& region) const {
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

BlockLayer::Gathered BlockLayer::cut_gathered(const BatchShape& batch, Region& region) const {
  Gathered gathered{};
  if (share_.exchanges_heads()) gathered.attention = region.take(act(batch, attention_cols()));
  if (!share_.cuts_rows()) return gathered;
  gathered.normed1_begin = region.used_bytes();
  gathered.normed1 = region.take(act(batch, shape_.hidden));
  gathered.normed2_begin = region.used_bytes();
  gathered.normed2 = region.take(act(batch, shape_.hidden));
  return gathered;
}

}  // namespace sluice::model
