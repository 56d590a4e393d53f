// The optimizers' settings, and the facts that follow from them alone: the state that each rule
// keeps between steps, its layout, the range that an update must see at once, and the cost of an
// update.
// kernels/optimizer.hpp has the arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.hpp"
#include "base/memory_kinds.hpp"

namespace sluice::kernels {

// kCaller: a host program updates whole tensors with code of its own (engine/host); no kernels do.
enum class OptimizerRule : std::uint8_t {
  kAdamW,
  kAdam,
  kSgd,
  kLion,
  kAdafactor,
  kSm3,
  kMuon,
  kCaller,
};
inline constexpr std::size_t kOptimizerRuleCount = 8;
std::string_view optimizer_rule_name(OptimizerRule rule);  // "adamw"

// Settings that are fixed for a run. Each rule reads those that its formula names.
struct OptimizerOptions {
  OptimizerRule rule = OptimizerRule::kAdamW;
  DType weight = DType::kBF16;  // kBF16, kF16, or kF32: the weight is its own master
  bool split_master = false;    // kBF16 weights: a 16-bit remainder replaces the fp32 master
  DType moments = DType::kF32;  // dtype of per-element moments: kF32, kBF16, kBlock8
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.9;         // sgd, muon
  bool nesterov = false;         // sgd; muon always uses Nesterov momentum
  double beta2_decay = -0.8;     // adafactor
  double clip_threshold = 1.0;   // adafactor's d
  double relative_floor = 1e-3;  // adafactor's second epsilon: least RMS of a parameter
  int newton_schulz_steps = 5;   // muon
  std::uint64_t seed = 0;        // seed of stochastic rounding
  int caller_moments = 0;        // caller: per-element states that it keeps, 0 to 2

  bool has_master() const { return weight != DType::kF32 && rule != OptimizerRule::kCaller; }
};

// kPerTensor: fp32 numbers of a whole tensor (sums over rows, for example), state_elems() of them.
enum class StateExtent : std::uint8_t { kAbsent, kPerElement, kPerTensor };
struct StateLayout {
  StateExtent extent = StateExtent::kAbsent;
  DType dtype = DType::kF32;
};
// kind: kMaster, kMoment1 or kMoment2. With split_master the master is kI16: the signed difference
// between the bits of the fp32 master and of the weight.
StateLayout state_layout(const OptimizerOptions& options, StateKind kind);

// A tensor as seen by rules that need whole tensors: a row-major matrix [rows, cols]. All
// dimensions except the last form the rows; a vector is [1, cols].
struct TensorView {
  std::int64_t rows = 1, cols = 0;
  bool hidden_matrix = false;  // a matrix between hidden activations; muon updates these itself
};
// Number of elements of one tensor's kPerTensor state.
std::uint64_t state_elems(const OptimizerOptions& options, StateKind kind,
                          const TensorView& tensor);

// Whether the rule updates only whole tensors, never a piece alone.
bool needs_whole_tensors(const OptimizerOptions& options);
// Bytes read and written per element by an update, over all passes of the rule, without kPerTensor
// states.
double update_bytes_per_elem(const OptimizerOptions& options, DType grad_dtype);
// Cost per element relative to AdamW with fp32 states, in instructions of the host's AVX2 code.
double update_arithmetic(const OptimizerOptions& options);
// Whether an update reads the weight and does not only write it.
bool reads_weight(const OptimizerOptions& options);

}  // namespace sluice::kernels
