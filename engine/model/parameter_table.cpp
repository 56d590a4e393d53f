#include "engine/model/parameter_table.hpp"

#include <fnmatch.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::model {
namespace {

// Of a tensor's part of kPerTensor state, and of a unit's whole: 256 bytes and 4 KiB of fp32.
constexpr std::uint64_t kPartAlignmentElems = 64;
constexpr std::uint64_t kStateAlignmentElems = 1024;

kernels::TensorView view_of(const TensorSpec& spec) {
  kernels::TensorView view;
  view.cols = spec.shape.back();
  view.rows = static_cast<std::int64_t>(spec.elems()) / view.cols;
  view.hidden_matrix = spec.hidden_matrix;
  return view;
}

bool matches(const ParameterGroup& group, const std::string& name) {
  return fnmatch(group.match.c_str(), name.c_str(), 0) == 0;
}

void check_groups(const Model& model, const std::vector<ParameterGroup>& groups) {
  for (const ParameterGroup& group : groups) {
    bool used = false;
    for (const Unit& unit : model.units()) {
      for (const PlacedTensor& tensor : unit.layer->layout().tensors()) {
        used = used || matches(group, tensor.spec.name);
      }
    }
    if (used) continue;
    throw InputError("optimizer.groups: no tensor's name matches \"" + group.match +
                     "\"; the first is \"" +
                     model.units().front().layer->layout().tensors().front().spec.name + "\"");
  }
}

}  // namespace

ParameterTable::ParameterTable(const Model& model, const kernels::OptimizerOptions& options,
                               double weight_decay, const std::vector<ParameterGroup>& groups)
    : options_(options) {
  check_groups(model, groups);
  std::uint64_t first_key = 0;
  for (const Unit& unit : model.units()) {
    UnitTable table;
    for (const PlacedTensor& tensor : unit.layer->layout().tensors()) {
      add_tensor(table, tensor, first_key);
      kernels::ParameterSegment& segment = table.tensors.back();
      segment.weight_decay = tensor.spec.decay ? static_cast<float>(weight_decay) : 0.0f;
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& candidate) {
        return matches(candidate, tensor.spec.name);
      });
      if (group == groups.end()) continue;
      segment.lr_scale = static_cast<float>(group->lr_scale);
      if (group->weight_decay) segment.weight_decay = static_cast<float>(*group->weight_decay);
    }
    table.state_elems = round_up(table.state_elems, kStateAlignmentElems);
    first_key += unit.layer->layout().elems();
    units_.push_back(std::move(table));
  }
}

void ParameterTable::add_tensor(UnitTable& unit, const PlacedTensor& tensor,
                                std::uint64_t unit_first_key) {
  kernels::ParameterSegment segment;
  segment.begin = static_cast<std::int64_t>(tensor.first_elem);
  segment.end = static_cast<std::int64_t>(tensor.first_elem + tensor.spec.elems());
  segment.first_key = unit_first_key + tensor.first_elem;
  segment.tensor = view_of(tensor.spec);
  if (kernels::needs_whole_tensors(options_)) {
    segment.moment2_begin = unit.state_elems;
    unit.state_elems +=
        round_up(state_elems(options_, StateKind::kMoment2, segment.tensor), kPartAlignmentElems);
  }
  unit.tensors.push_back(segment);
}

std::vector<kernels::ParameterSegment> ParameterTable::segments(std::size_t unit, std::uint64_t begin,
                                                       std::uint64_t end) const {
  std::vector<kernels::ParameterSegment> segments;
  const auto from = static_cast<std::int64_t>(begin);
  const auto to = static_cast<std::int64_t>(end);
  for (kernels::ParameterSegment segment : units_[unit].tensors) {
    const std::int64_t first = std::max(segment.begin, from);
    const std::int64_t last = std::min(segment.end, to);
    if (first >= last) continue;
    segment.first_key += static_cast<std::uint64_t>(first - segment.begin);
    segment.begin = first - from;
    segment.end = last - from;
    segments.push_back(segment);
  }
  return segments;
}

ParameterTable::StatePart ParameterTable::tensor_state(std::size_t unit, std::size_t tensor) const {
  const kernels::ParameterSegment& segment = units_[unit].tensors[tensor];
  return {segment.moment2_begin, state_elems(options_, StateKind::kMoment2, segment.tensor)};
}

}  // namespace sluice::model
