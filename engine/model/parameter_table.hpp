// The optimizer's view of a model's tensors: learning rate, decay, shape, and the place of their
// sums (for rules that need whole tensors).
//
// Such a rule updates *logical matrices*. A tensor may hold several of them, one above the other
// (TensorSpec::matrix_rows): Llama's q, k and v are three matrices to Muon and Adafactor, as they
// are in PyTorch, although one product computes all three. Each gets a segment with its own shape
// and sums. Elementwise rules see the stored tensors. Files and names keep the stored tensors too.
//
// Keys count the elements of the whole model, also where a rank has parts of tensors: each slice of
// a part is a segment with the keys that its elements have on a rank alone.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/parameter_group.hpp"
#include "engine/model/parameter_space.hpp"
#include "kernels/optimizer_options.hpp"
#include "kernels/parameter_segment.hpp"

namespace sluice::model {

class ParameterTable {
 public:
  // How sums of whole tensors lie in a unit: side by side, or so that shards may break between
  // tensors. A shard begins at a whole norm block of 4,096 elements, as blocks are tagged.
  enum class SumLayout : std::uint8_t { kDense, kForShards };
  // weight_decay applies to matrices and embeddings; vectors have none. Throws InputError that
  // names a group without a matching tensor, or a tensor that 8-bit moments cannot represent.
  ParameterTable(const ParameterSpace& space, const kernels::OptimizerOptions& options,
                 double weight_decay, const std::vector<ParameterGroup>& groups,
                 SumLayout layout = SumLayout::kDense);
  // Each unit by its own rule: a host program's space. `rules` has one for each unit.
  struct UnitRule {
    kernels::OptimizerOptions options;
    float lr_scale = 1;
    float weight_decay = 0;
  };
  ParameterTable(const ParameterSpace& space, const std::vector<UnitRule>& rules);

  // The options of every unit; precondition: the table was made of one set of options.
  const kernels::OptimizerOptions& options() const { return options_; }
  const kernels::OptimizerOptions& options(std::size_t unit) const { return units_[unit].options; }
  // The segments inside elements [begin, end) of a unit; their bounds count from `begin`, and the
  // places of their sums from those of the first one. Rules that need whole tensors: both are
  // borders of tensors.
  std::vector<kernels::ParameterSegment> segments(std::size_t unit, std::uint64_t begin,
                                                  std::uint64_t end) const;
  // Elements of the unit's kPerTensor state, padded to whole 4 KiB; 0: it has none.
  std::uint64_t tensor_state_elems(std::size_t unit) const { return units_[unit].state_elems; }
  // The first element and the first sum of each tensor that begins at a multiple of 4,096 elements.
  // Shards may break there if the table was made for them. Empty: the rule does not need whole
  // tensors.
  struct Border {
    std::uint64_t elem = 0;
    std::uint64_t sum = 0;
  };
  const std::vector<Border>& tensor_borders(std::size_t unit) const { return units_[unit].borders; }
  // One stored tensor's part of that state, without padding: the sums of its logical matrices, one
  // after the other. `tensor` is an index into the unit's layout.
  struct StatePart {
    std::uint64_t begin = 0;
    std::uint64_t elems = 0;
  };
  StatePart tensor_state(std::size_t unit, std::size_t tensor) const;

 private:
  struct UnitTable {
    kernels::OptimizerOptions options;
    // Whole tensors or logical matrices; bounds count from the unit's first element.
    std::vector<kernels::ParameterSegment> segments;
    std::vector<StatePart> states;  // by tensor of the layout
    std::vector<Border> borders;
    std::uint64_t state_elems = 0;
  };
  // segment: the whole tensor, or all of the part.
  void add_tensor(UnitTable& unit, const PlacedTensor& tensor, kernels::ParameterSegment segment);

  kernels::OptimizerOptions options_;
  SumLayout layout_ = SumLayout::kDense;
  std::vector<UnitTable> units_;
};

}  // namespace sluice::model
