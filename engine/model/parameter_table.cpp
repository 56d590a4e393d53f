#include "engine/model/parameter_table.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "base/units.hpp"
#include "kernels/key_runs.hpp"

namespace sluice::model {
namespace {

// Alignment of a tensor's part of kPerTensor state, and of a unit's whole state: 256 bytes and
// 4 KiB of fp32.
constexpr std::uint64_t kPartAlignmentElems = 64;
constexpr std::uint64_t kStateAlignmentElems = 1024;

kernels::TensorView view_of(const TensorSpec& spec) {
  kernels::TensorView view;
  view.cols = spec.shape.back();
  view.rows = static_cast<std::int64_t>(spec.elems()) / view.cols;
  view.hidden_matrix = spec.hidden_matrix;
  return view;
}

// Rows of each matrix that a rule for whole tensors updates by itself.
std::vector<std::int64_t> matrix_rows(const TensorSpec& spec, const kernels::TensorView& whole) {
  if (spec.matrix_rows.empty()) return {whole.rows};
  SLUICE_CHECK_MSG(std::accumulate(spec.matrix_rows.begin(), spec.matrix_rows.end(),
                                   std::int64_t{0}) == whole.rows,
                   spec.name);
  return spec.matrix_rows;
}

// 8-bit moments share a scale in blocks of 128 elements, so no matrix may begin inside a block.
void check_blocks(const kernels::OptimizerOptions& options, const TensorSpec& spec,
                  std::int64_t begin) {
  if (options.moments != DType::kBlock8) return;
  if (begin % static_cast<std::int64_t>(kBlock8Elems) == 0) return;
  throw InputError("optimizer.moments = \"8bit\" with optimizer.name = \"" +
                   std::string(optimizer_rule_name(options.rule)) + "\": a matrix of '" +
                   spec.name +
                   "' begins inside a block of 128 elements that share a scale; use \"bf16\" or "
                   "\"fp32\" moments, or sizes by which each matrix has a multiple of 128 "
                   "elements");
}

bool matches(const ParameterGroup& group, const std::string& name) {
  return fnmatch(group.match.c_str(), name.c_str(), 0) == 0;
}

void check_groups(const ParameterSpace& space, const std::vector<ParameterGroup>& groups) {
  for (const ParameterGroup& group : groups) {
    bool used = false;
    for (std::size_t unit = 0; unit < space.unit_count(); ++unit) {
      for (const PlacedTensor& tensor : space.layout(unit).tensors()) {
        used = used || matches(group, tensor.spec.name);
      }
    }
    if (used) continue;
    throw InputError("optimizer.groups: no tensor's name matches \"" + group.match +
                     "\"; the first is \"" + space.layout(0).tensors().front().spec.name + "\"");
  }
}

// The segment of a stored tensor. first_key: of its first element, or of that of the whole.
kernels::ParameterSegment segment_of(const PlacedTensor& tensor, std::uint64_t first_key) {
  kernels::ParameterSegment segment;
  segment.begin = static_cast<std::int64_t>(tensor.first_elem);
  segment.end = static_cast<std::int64_t>(tensor.first_elem + tensor.spec.elems());
  segment.first_key = first_key;
  segment.tensor = view_of(tensor.spec);
  return segment;
}

// The unit of a rank alone: whole tensors, where this rank may have parts.
UnitLayout whole_layout(const UnitLayout& layout) {
  std::vector<TensorSpec> specs;
  for (const PlacedTensor& tensor : layout.tensors()) {
    TensorSpec spec;
    spec.shape = tensor.spec.file_shape();
    specs.push_back(std::move(spec));
  }
  return UnitLayout(std::move(specs));
}

// A segment for each slice of a part. first_key of `part` is that of the whole tensor.
void add_slices(std::vector<kernels::ParameterSegment>& segments, const TensorSpec& spec,
                const kernels::ParameterSegment& part) {
  const auto whole_cols = static_cast<std::int64_t>(spec.whole_elems()) / spec.whole_shape.front();
  kernels::ParameterSegment segment = part;
  for (const TensorSlice& slice : spec.slices) {
    segment.end = segment.begin + slice.rows * slice.cols;
    segment.first_key =
        part.first_key + static_cast<std::uint64_t>(slice.row * whole_cols + slice.col);
    segment.runs = {};
    if (slice.cols < whole_cols) segment.runs = {slice.cols, whole_cols - slice.cols, 0};
    segments.push_back(segment);
    segment.begin = segment.end;
  }
}

}  // namespace

ParameterTable::ParameterTable(const ParameterSpace& space,
                               const kernels::OptimizerOptions& options, double weight_decay,
                               const std::vector<ParameterGroup>& groups, SumLayout layout)
    : options_(options), layout_(layout) {
  check_groups(space, groups);
  std::uint64_t first_key = 0;
  for (std::size_t unit = 0; unit < space.unit_count(); ++unit) {
    UnitTable table;
    table.options = options;
    const UnitLayout whole = whole_layout(space.layout(unit));
    for (std::size_t t = 0; t < whole.tensors().size(); ++t) {
      const PlacedTensor& tensor = space.layout(unit).tensors()[t];
      kernels::ParameterSegment segment =
          segment_of(tensor, first_key + whole.tensors()[t].first_elem);
      segment.weight_decay = tensor.spec.decay ? static_cast<float>(weight_decay) : 0.0f;
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& candidate) {
        return matches(candidate, tensor.spec.name);
      });
      if (group != groups.end()) {
        segment.lr_scale = static_cast<float>(group->lr_scale);
        if (group->weight_decay) segment.weight_decay = static_cast<float>(*group->weight_decay);
      }
      add_tensor(table, tensor, segment);
    }
    table.state_elems = round_up(table.state_elems, kStateAlignmentElems);
    first_key += whole.elems();
    units_.push_back(std::move(table));
  }
}

ParameterTable::ParameterTable(const ParameterSpace& space, const std::vector<UnitRule>& rules) {
  SLUICE_CHECK(rules.size() == space.unit_count());
  std::uint64_t first_key = 0;
  for (std::size_t unit = 0; unit < rules.size(); ++unit) {
    UnitTable table;
    table.options = rules[unit].options;
    for (const PlacedTensor& tensor : space.layout(unit).tensors()) {
      kernels::ParameterSegment segment = segment_of(tensor, first_key + tensor.first_elem);
      segment.weight_decay = rules[unit].weight_decay;
      segment.lr_scale = rules[unit].lr_scale;
      add_tensor(table, tensor, segment);
    }
    table.state_elems = round_up(table.state_elems, kStateAlignmentElems);
    first_key += space.layout(unit).elems();
    units_.push_back(std::move(table));
  }
}

void ParameterTable::add_tensor(UnitTable& unit, const PlacedTensor& tensor,
                                kernels::ParameterSegment segment) {
  const kernels::StateLayout sums = kernels::state_layout(unit.options, StateKind::kMoment2);
  if (sums.extent != kernels::StateExtent::kPerTensor) {
    if (tensor.spec.is_part()) {
      add_slices(unit.segments, tensor.spec, segment);
    } else {
      unit.segments.push_back(segment);
    }
    unit.states.emplace_back();
    return;
  }
  StatePart state{unit.state_elems, 0};
  if (tensor.first_elem % kLawBlockElems == 0) {
    if (layout_ == SumLayout::kForShards) state.begin = round_up(state.begin, kLawBlockElems);
    unit.borders.push_back({tensor.first_elem, state.begin});
  }
  for (const std::int64_t rows : matrix_rows(tensor.spec, segment.tensor)) {
    segment.tensor.rows = rows;
    segment.end = segment.begin + rows * segment.tensor.cols;
    check_blocks(unit.options, tensor.spec, segment.begin);
    segment.moment2_begin = state.begin + state.elems;
    state.elems += state_elems(unit.options, StateKind::kMoment2, segment.tensor);
    unit.segments.push_back(segment);
    segment.first_key += static_cast<std::uint64_t>(segment.end - segment.begin);
    segment.begin = segment.end;
  }
  unit.state_elems = state.begin + round_up(state.elems, kPartAlignmentElems);
  unit.states.push_back(state);
}

std::vector<kernels::ParameterSegment> ParameterTable::segments(std::size_t unit,
                                                                std::uint64_t begin,
                                                                std::uint64_t end) const {
  std::vector<kernels::ParameterSegment> segments;
  const auto from = static_cast<std::int64_t>(begin);
  const auto to = static_cast<std::int64_t>(end);
  for (kernels::ParameterSegment segment : units_[unit].segments) {
    const std::int64_t first = std::max(segment.begin, from);
    const std::int64_t last = std::min(segment.end, to);
    if (first >= last) continue;
    segment = kernels::segment_from(segment, first);
    segment.begin = first - from;
    segment.end = last - from;
    segments.push_back(segment);
  }
  // The sums of the range begin with those of its first tensor.
  const std::uint64_t sums_before = segments.empty() ? 0 : segments.front().moment2_begin;
  for (kernels::ParameterSegment& segment : segments) segment.moment2_begin -= sums_before;
  return segments;
}

ParameterTable::StatePart ParameterTable::tensor_state(std::size_t unit, std::size_t tensor) const {
  return units_[unit].states[tensor];
}

}  // namespace sluice::model
