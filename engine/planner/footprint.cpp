// Layers declare the bytes of each pass, of each saved part and of each workspace for one batch.
// This file collects them into the StepModel, the only view of a model that the schedule compiler
// has. It allocates nothing and runs nothing. A workspace of an update is the larger of both
// devices' needs, because the planner decides later on which of them an update runs.
#include "engine/planner/footprint.hpp"

#include <algorithm>

#include "base/units.hpp"

namespace sluice::planner {
namespace {

// The norm blocks of parts of tensors, in runs.
std::vector<schedule::ElemRange> cut_norm_blocks(const model::UnitLayout& layout) {
  std::vector<schedule::ElemRange> runs;
  std::uint64_t block = 0;
  for (const model::PlacedTensor& tensor : layout.tensors()) {
    const std::uint64_t blocks = ceil_div(tensor.spec.place_elems(), kLawBlockElems);
    if (tensor.spec.is_part()) {
      if (!runs.empty() && runs.back().end == block) {
        runs.back().end += blocks;
      } else {
        runs.push_back({block, block + blocks});
      }
    }
    block += blocks;
  }
  return runs;
}

}  // namespace

// Layers declare their needs for this batch; the parameter table gives the sizes of per-tensor
// state.
schedule::StepModel make_step_model(const model::Model& model, const model::BatchShape& batch,
                                    const model::ParameterTable& table,
                                    const kernels::Kernels& kernels,
                                    const kernels::Kernels& host_kernels) {
  schedule::StepModel step;
  step.dtype = batch.dtype;
  step.optimizer = table.options();
  step.token_bytes = 2 * static_cast<std::uint64_t>(batch.rows()) * sizeof(std::int32_t);
  for (const model::Unit& unit : model.units()) {
    const model::PassNeeds needs = unit.layer->needs(batch, kernels);
    schedule::UnitFootprint footprint;
    footprint.name = unit.name;
    footprint.elems = unit.layer->layout().elems();
    footprint.has_input = unit.has_input;
    footprint.is_head = unit.is_head;
    footprint.recomputable = unit.recomputable;
    footprint.borrows = unit.borrows;
    footprint.output_bytes = needs.output_bytes;
    footprint.saved_bytes = needs.saved_bytes;
    footprint.saved_parts = unit.layer->saves(batch, kernels);
    footprint.context_bytes = needs.context_bytes;
    footprint.forward_workspace_bytes = needs.forward_workspace_bytes;
    footprint.backward_input_workspace_bytes = needs.backward_input_workspace_bytes;
    footprint.backward_weight_workspace_bytes = needs.backward_weight_workspace_bytes;
    footprint.segments = needs.segments;
    footprint.cut_norm_blocks = cut_norm_blocks(unit.layer->layout());
    footprint.norm_blocks_before = unit.layer->layout().norm_blocks_before();
    const std::size_t at = step.units.size();
    footprint.tensor_state_elems = table.tensor_state_elems(at);
    for (const model::ParameterTable::Border& border : table.tensor_borders(at)) {
      footprint.tensor_borders.push_back({border.elem, border.sum});
    }
    if (!footprint.tensor_borders.empty()) {
      footprint.tensor_borders.push_back({footprint.elems, footprint.tensor_state_elems});
    }
    const auto segments = table.segments(at, 0, footprint.elems);
    footprint.update_workspace_bytes =
        std::max(kernels.update_workspace_bytes(table.options(), segments),
                 host_kernels.update_workspace_bytes(table.options(), segments));
    if (unit.borrows >= 0) {
      const model::Unit& lender = model.units()[static_cast<std::size_t>(unit.borrows)];
      step.tied_elems =
          round_up(lender.layer->layout().tensors().front().spec.place_elems(), kLawBlockElems);
    }
    step.units.push_back(std::move(footprint));
  }
  return step;
}

}  // namespace sluice::planner
