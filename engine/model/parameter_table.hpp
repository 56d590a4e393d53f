// What the optimizer is told of each tensor of a model: learning rate, decay, shape, and where its
// sums lie (rules that need whole tensors).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/model.hpp"
#include "engine/model/parameter_group.hpp"

namespace sluice::model {

class ParameterTable {
 public:
  // weight_decay: of matrices and embeddings; vectors have none. Throws InputError naming a group
  // that no tensor matches.
  ParameterTable(const Model& model, const kernels::OptimizerOptions& options, double weight_decay,
                 const std::vector<ParameterGroup>& groups);

  const kernels::OptimizerOptions& options() const { return options_; }
  // The tensors' parts inside elements [begin, end) of a unit; bounds count from `begin`.
  std::vector<kernels::ParameterSegment> segments(std::size_t unit, std::uint64_t begin,
                                         std::uint64_t end) const;
  // Of the unit's kPerTensor state, padded to whole 4 KiB; 0: none.
  std::uint64_t tensor_state_elems(std::size_t unit) const { return units_[unit].state_elems; }
  // Of one tensor: its part of that state, without padding.
  struct StatePart {
    std::uint64_t begin = 0;
    std::uint64_t elems = 0;
  };
  StatePart tensor_state(std::size_t unit, std::size_t tensor) const;

 private:
  struct UnitTable {
    std::vector<kernels::ParameterSegment> tensors;  // whole, counted from the unit's first element
    std::uint64_t state_elems = 0;
  };
  void add_tensor(UnitTable& unit, const PlacedTensor& tensor, std::uint64_t unit_first_key);

  kernels::OptimizerOptions options_;
  std::vector<UnitTable> units_;
};

}  // namespace sluice::model
