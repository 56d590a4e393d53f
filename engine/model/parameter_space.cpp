#include "engine/model/parameter_space.hpp"

#include "base/error.hpp"

namespace sluice::model {

std::uint64_t ParameterSpace::parameter_count() const {
  std::uint64_t total = 0;
  for (const UnitLayout* layout : layouts_) total += layout->parameter_count();
  return total;
}

const std::string& ParameterSpace::tensor_of_norm_block(std::size_t block) const {
  for (const UnitLayout* layout : layouts_) {
    if (block >= layout->norm_block_count()) {
      block -= layout->norm_block_count();
      continue;
    }
    const std::uint64_t begin = layout->norm_block(block).begin;
    for (const PlacedTensor& tensor : layout->tensors()) {
      if (begin < tensor.first_elem + tensor.spec.place_elems()) return tensor.spec.name;
    }
  }
  throw InternalError("no tensor has this norm block");
}

}  // namespace sluice::model
