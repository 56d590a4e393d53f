// How a run's state lies in a safetensors file: names, types and shapes, and which bytes of a
// unit's homes belong to which of them.
//
// A weight has its tensor's name; other state is "master.NAME", "remainder.NAME" (I16, split
// master), "moment1.NAME", "moment2.NAME". 8-bit moments are two tensors: the codes (U8, of the
// tensor's shape) and "moment1_scale.NAME" (F32, one for each 128 elements). Sums of whole tensors
// are F32, of one dimension. A tensor-parallel rank's part of a tensor has its places in the whole
// one.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/checkpoint/safetensors.hpp"
#include "engine/model/parameter_table.hpp"

namespace sluice::checkpoint {

struct StateColumn {
  StateKind kind = StateKind::kWeight;
  kernels::StateLayout layout;
};
inline constexpr StateColumn weight_column(DType dtype) {
  return {StateKind::kWeight, {kernels::StateExtent::kPerElement, dtype}};
}

// Whether a tensor of a checkpoint is no weight, by its name.
bool is_optimizer_state(std::string_view name);

class StoredTensors {
 public:
  enum class Kinds { kWeights, kAll };
  // space and table must outlive it.
  StoredTensors(const model::ParameterSpace& space, const model::ParameterTable& table,
                Kinds kinds);

  // The state of a unit, by its own rule.
  const std::vector<StateColumn>& columns(std::size_t unit) const { return columns_[unit]; }
  const std::vector<SafetensorsSpec>& specs() const { return specs_; }
  // Elements of the column's home of a unit; 0: the unit has none.
  std::uint64_t home_elems(std::size_t unit, std::size_t column) const;

  // Calls part(spec, offset, data, bytes) for every run of bytes of elements [begin, end) of the
  // home (whole groups of its dtype) that belongs to a tensor; `offset` counts from the tensor's
  // first byte, `data` is where element `begin` lies. For one spec, offsets ascend without gaps,
  // unless the unit has a part of the tensor alone.
  using Part =
      std::function<void(std::size_t spec, std::uint64_t offset, std::byte* data, std::uint64_t)>;
  void for_parts(std::size_t unit, std::size_t column, std::uint64_t begin, std::uint64_t end,
                 std::byte* data, const Part& part) const;
  // The first spec of a tensor's column.
  std::size_t first_spec(std::size_t unit, std::size_t tensor, std::size_t column) const {
    return first_specs_[unit][tensor * columns_[unit].size() + column];
  }

 private:
  void add_specs(const model::TensorSpec& tensor, const StateColumn& column,
                 model::ParameterTable::StatePart sums);

  const model::ParameterSpace& space_;
  const model::ParameterTable& table_;
  std::vector<std::vector<StateColumn>> columns_;  // by unit
  std::vector<SafetensorsSpec> specs_;
  std::vector<std::vector<std::size_t>> first_specs_;  // by unit; by tensor and column
};

}  // namespace sluice::checkpoint
