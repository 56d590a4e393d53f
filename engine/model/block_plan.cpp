// The tensors of a transformer block, and the part of each that a rank of a tensor group holds.
#include "engine/model/block_plan.hpp"

#include <cmath>
#include <string>
#include <utility>

namespace sluice::model {

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
  // Matrices first: the short vectors then pack densely after them.
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

}  // namespace sluice::model
