// Facts about the optimizers that schedules and the planner need: layouts of states, memory traffic
// and arithmetic of an update. Figures are per element, so that the planner can price any chunk.
#include "kernels/optimizer_options.hpp"

#include <array>
#include <string>

#include "base/error.hpp"

namespace sluice::kernels {
namespace {

StateLayout moment1_layout(const OptimizerOptions& options) {
  switch (options.rule) {
    case OptimizerRule::kAdafactor:
      return {};
    case OptimizerRule::kSgd:
      if (options.momentum == 0) return {};
      break;
    case OptimizerRule::kCaller:
      if (options.caller_moments < 1) return {};
      break;
    default:
      break;
  }
  return {StateExtent::kPerElement, options.moments};
}

StateLayout moment2_layout(const OptimizerOptions& options) {
  switch (options.rule) {
    case OptimizerRule::kAdamW:
    case OptimizerRule::kAdam:
      return {StateExtent::kPerElement, options.moments};
    case OptimizerRule::kAdafactor:
    case OptimizerRule::kSm3:
    case OptimizerRule::kMuon:
      return {StateExtent::kPerTensor, DType::kF32};
    case OptimizerRule::kCaller:
      if (options.caller_moments > 1) return {StateExtent::kPerElement, options.moments};
      break;
    case OptimizerRule::kSgd:
    case OptimizerRule::kLion:
      break;
  }
  return {};
}

}  // namespace

std::string_view optimizer_rule_name(OptimizerRule rule) {
  constexpr std::array<std::string_view, kOptimizerRuleCount> names{
      "adamw", "adam", "sgd", "lion", "adafactor", "sm3", "muon", "caller"};
  return names[static_cast<std::size_t>(rule)];
}

StateLayout state_layout(const OptimizerOptions& options, StateKind kind) {
  switch (kind) {
    case StateKind::kMaster:
      if (!options.has_master()) return {};
      return {StateExtent::kPerElement, options.split_master ? DType::kI16 : DType::kF32};
    case StateKind::kMoment1:
      return moment1_layout(options);
    case StateKind::kMoment2:
      return moment2_layout(options);
    default:
      throw InternalError("not an optimizer's state: " + std::string(state_kind_name(kind)));
  }
}

std::uint64_t state_elems(const OptimizerOptions& options, StateKind kind,
                          const TensorView& tensor) {
  SLUICE_CHECK(state_layout(options, kind).extent == StateExtent::kPerTensor);
  const auto rows = static_cast<std::uint64_t>(tensor.rows);
  const auto cols = static_cast<std::uint64_t>(tensor.cols);
  if (options.rule == OptimizerRule::kMuon) return tensor.hidden_matrix ? 0 : rows * cols;
  return rows > 1 ? rows + cols : cols;
}

bool needs_whole_tensors(const OptimizerOptions& options) {
  return options.rule == OptimizerRule::kCaller ||
         state_layout(options, StateKind::kMoment2).extent == StateExtent::kPerTensor;
}

double update_bytes_per_elem(const OptimizerOptions& options, DType grad_dtype) {
  const auto each = [](DType type) {
    return static_cast<double>(bytes_of(type, kBlock8GroupElems)) / kBlock8GroupElems;
  };
  double bytes = each(grad_dtype) + each(options.weight) * (reads_weight(options) ? 2 : 1);
  for (const StateKind kind : {StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2}) {
    const StateLayout layout = state_layout(options, kind);
    if (layout.extent == StateExtent::kPerElement) bytes += 2 * each(layout.dtype);
  }
  // Adafactor reads the gradient for its sums of squares, again for its RMS, and for the update.
  if (options.rule == OptimizerRule::kAdafactor) bytes += 2 * each(grad_dtype) + 4;
  return bytes;
}

// Instructions for each vector of 8 elements: fp32 states 31, split 48, split with 8-bit moments
// 159 (callgrind), split with bf16 moments 68, of which 15 make the noise (pairs_simd.hpp as
// compiled). bf16 moments in the other loop cost the same noise and 14 for each moment's formats.
double update_arithmetic(const OptimizerOptions& options) {
  double instructions = options.split_master ? 48 : 31;
  int moments = 0;
  for (const StateKind kind : {StateKind::kMoment1, StateKind::kMoment2}) {
    if (state_layout(options, kind).extent == StateExtent::kPerElement) ++moments;
  }
  if (options.moments == DType::kBF16) instructions += moments * (options.split_master ? 10 : 21.5);
  if (options.moments == DType::kBlock8) instructions += moments * 55.5;
  return instructions / 31;
}

bool reads_weight(const OptimizerOptions& options) {
  return !options.has_master() || options.split_master;
}

}  // namespace sluice::kernels
