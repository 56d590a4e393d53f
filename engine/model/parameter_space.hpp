// The parameters of a program by unit: a flat space of named tensors for each. State homes, files,
// norms and updates see this and nothing of layers. A Model is one; a host program fills another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/unit_layout.hpp"

namespace sluice::model {

class ParameterSpace {
 public:
  std::size_t unit_count() const { return layouts_.size(); }
  const UnitLayout& layout(std::size_t unit) const { return *layouts_[unit]; }
  // Elements of all tensors, without gaps.
  std::uint64_t parameter_count() const;
  // The name of the tensor with a norm block; `block` counts through all units in tensor order.
  const std::string& tensor_of_norm_block(std::size_t block) const;

  // The layout must outlive this object and keep its address.
  void add_unit(const UnitLayout& layout) { layouts_.push_back(&layout); }

 private:
  std::vector<const UnitLayout*> layouts_;
};

}  // namespace sluice::model
