// A pass without cuts is one instruction, also where layers declare segments. Segments without a
// cut between them run together.
#include "engine/schedule/compile/inner_sums.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "engine/schedule/even_parts.hpp"

namespace sluice::schedule {
namespace {

// The bytes that this rank sends, and those of the workspace that it receives parts in. Parts
// differ by an element; all ranks of the group have room for the largest, so that their memory is
// alike.
struct Sizes {
  std::uint64_t sent = 0;
  std::uint64_t workspace = 0;
};

// The ranks that a value crosses between, this rank's number among them, and their group.
struct Crossing {
  std::int32_t ranks = 1, rank = 0, group = -1;
};

Crossing crossing_of(const StepBuilder& builder, CutRanks among) {
  const TensorView& tensor = builder.tensor();
  switch (among) {
    case CutRanks::kTensor:
      return {tensor.parts(), tensor.part(), builder.inner_group(among)};
    case CutRanks::kContext:
      return {tensor.contexts, tensor.context(), builder.inner_group(among)};
    case CutRanks::kSharers:
      return {tensor.sharers, tensor.rank % tensor.sharers, builder.inner_group(among)};
  }
  return {};
}

Sizes sizes_of(const Crossing& among, CutKind kind, std::uint64_t bytes, DType dtype) {
  const std::uint64_t elems = elems_in(dtype, bytes);
  const std::uint64_t own = bytes_of(dtype, even_part(elems, among.ranks, among.rank).elems());
  const std::uint64_t largest = bytes_of(dtype, even_part(elems, among.ranks, 0).elems());
  const auto ranks = static_cast<std::uint64_t>(among.ranks);
  return {inner_bytes(kind, bytes, own, ranks), inner_workspace_bytes(kind, bytes, largest, ranks)};
}

Instruction& emit_reduction(StepBuilder& builder, CutKind kind, std::int32_t unit,
                            std::int32_t microbatch, const Uses& values, DType dtype,
                            CutRanks among) {
  const Crossing crossing = crossing_of(builder, among);
  std::uint64_t sent = 0, workspace = 0;
  for (const Use& value : values) {
    const Sizes sizes = sizes_of(crossing, kind, value.bytes, dtype);
    sent += sizes.sent;
    workspace = std::max(workspace, sizes.workspace);
  }
  const BufferId scratch = builder.add_sum_scratch(workspace, unit, microbatch);
  Instruction& reduction = builder.emit(Op::kAllReduce, Lane::kInner, unit, microbatch);
  reduction.group = crossing.group;
  reduction.reduction = kind;
  reduction.reduced = dtype;
  reduction.reads = values;
  reduction.writes = values;
  if (scratch != kNoId) reduction.writes.push_back({scratch, 0, 0});
  reduction.bytes = sent;
  return reduction;
}

}  // namespace

std::vector<PassStep> steps_of(const TensorView& tensor, const PassSegments& segments,
                               bool makes_output, PartMask remade) {
  const auto count = static_cast<std::int32_t>(segments.size());
  std::vector<PassStep> steps(1);
  if (tensor.is_alone()) return steps;
  for (std::int32_t segment = 0; segment < count; ++segment) {
    PassStep& step = steps.back();
    for (const Cut& cut : segments[static_cast<std::size_t>(segment)]) {
      if (makes_output || (cut.parts & remade) != 0) step.cuts.push_back(cut);
    }
    if (step.cuts.empty() || segment + 1 == count) continue;
    step.segments.end = segment + 1;
    steps.push_back({{segment + 1, SegmentRange().end}, {}});
  }
  // Cuts after the last segment belong to a pass that is cut, even if they are its only ones.
  if (steps.size() == 1 && !steps.front().cuts.empty()) steps.front().segments.end = count;
  return steps;
}

void emit_cut(StepBuilder& builder, const Cut& cut, std::int32_t unit, std::int32_t microbatch,
              const Use& value) {
  emit_reduction(builder, cut.kind, unit, microbatch, {value}, cut.dtype, cut.among);
}

void emit_inner_norm_sum(StepBuilder& builder) {
  if (builder.tensor().is_alone()) return;
  Uses partials;
  for (std::int32_t unit = 0; unit < builder.unit_count(); ++unit) {
    if (!builder.owns(unit)) continue;
    const auto& runs = builder.model().units[static_cast<std::size_t>(unit)].cut_norm_blocks;
    for (const ElemRange& blocks : runs) {
      const Use use = builder.norm_partials_of_blocks(unit, blocks);
      const bool follows = !partials.empty() &&
                           partials.back().offset_bytes + partials.back().bytes == use.offset_bytes;
      if (follows) {
        partials.back().bytes += use.bytes;
      } else {
        partials.push_back(use);
      }
    }
  }
  // Ranks of a context group have whole tensors.
  if (partials.empty()) return;
  emit_reduction(builder, CutKind::kSum, -1, -1, partials, DType::kF64, CutRanks::kTensor);
}

}  // namespace sluice::schedule
