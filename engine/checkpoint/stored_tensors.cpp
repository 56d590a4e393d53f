#include "engine/checkpoint/stored_tensors.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::checkpoint {
namespace {

std::string name_of(const StateColumn& column, const std::string& tensor) {
  if (column.kind == StateKind::kWeight) return tensor;
  if (column.layout.dtype == DType::kI16) return "remainder." + tensor;
  return std::string(state_kind_name(column.kind)) + "." + tensor;
}

// A run of elements of a home, in elements of the home and of its tensor.
struct Run {
  std::uint64_t home = 0;
  std::uint64_t tensor = 0;
  std::uint64_t elems = 0;
};

Run overlap(std::uint64_t first, std::uint64_t elems, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t from = std::max(first, begin);
  const std::uint64_t to = std::min(first + elems, end);
  if (from >= to) return {};
  return {from, from - first, to - from};
}

// Codes are the spec `codes`, scales the one after it. Tensors begin at blocks' first elements.
void for_block8_parts(const Run& run, std::uint64_t begin, std::byte* data, std::size_t codes,
                      const StoredTensors::Part& part) {
  std::uint64_t done = 0;
  while (done < run.elems) {
    const std::uint64_t at = run.home + done - begin;
    const std::uint64_t inside = at % kBlock8GroupElems;
    const std::uint64_t elems = std::min(kBlock8GroupElems - inside, run.elems - done);
    std::byte* const group = data + at / kBlock8GroupElems * kBlock8GroupBytes;
    std::byte* const scales = group + inside / kBlock8Elems * sizeof(float);
    part(codes + 1, (run.tensor + done) / kBlock8Elems * sizeof(float), scales,
         ceil_div(elems, kBlock8Elems) * sizeof(float));
    part(codes, run.tensor + done,
         group + kBlock8GroupElems / kBlock8Elems * sizeof(float) + inside, elems);
    done += elems;
  }
}

// The weight and the optimizer's state.
std::vector<StateColumn> state_columns(const kernels::OptimizerOptions& options) {
  std::vector<StateColumn> columns{weight_column(options.weight)};
  for (const StateKind kind : kOptimizerKinds) {
    const kernels::StateLayout layout = kernels::state_layout(options, kind);
    if (layout.extent != kernels::StateExtent::kAbsent) columns.push_back({kind, layout});
  }
  return columns;
}

}  // namespace

bool is_optimizer_state(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('.'));
  constexpr std::array<std::string_view, 6> kinds{"master",        "remainder", "moment1",
                                                  "moment1_scale", "moment2",   "moment2_scale"};
  return std::find(kinds.begin(), kinds.end(), first) != kinds.end();
}

StoredTensors::StoredTensors(const model::ParameterSpace& space, const model::ParameterTable& table,
                             Kinds kinds)
    : space_(space), table_(table) {
  for (std::size_t unit = 0; unit < space.unit_count(); ++unit) {
    std::vector<StateColumn> columns = state_columns(table.options(unit));
    if (kinds == Kinds::kWeights) columns.resize(1);  // the weight comes first
    std::vector<std::size_t> firsts;
    const auto& tensors = space.layout(unit).tensors();
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (const StateColumn& column : columns) {
        firsts.push_back(specs_.size());
        const bool sums = column.layout.extent == kernels::StateExtent::kPerTensor;
        add_specs(tensors[t].spec, column,
                  sums ? table.tensor_state(unit, t) : model::ParameterTable::StatePart{});
      }
    }
    columns_.push_back(std::move(columns));
    first_specs_.push_back(std::move(firsts));
  }
}

void StoredTensors::add_specs(const model::TensorSpec& tensor, const StateColumn& column,
                              model::ParameterTable::StatePart sums) {
  const std::string name = name_of(column, tensor.name);
  if (column.layout.extent == kernels::StateExtent::kPerTensor) {
    if (sums.elems == 0) return;
    specs_.push_back({name, DType::kF32, {static_cast<std::int64_t>(sums.elems)}});
  } else if (column.layout.dtype == DType::kBlock8) {
    specs_.push_back({name, DType::kU8, tensor.shape});
    const std::uint64_t blocks = ceil_div(tensor.elems(), kBlock8Elems);
    specs_.push_back({std::string(state_kind_name(column.kind)) + "_scale." + tensor.name,
                      DType::kF32,
                      {static_cast<std::int64_t>(blocks)}});
  } else {
    specs_.push_back({name, column.layout.dtype, tensor.file_shape()});
  }
}

std::uint64_t StoredTensors::home_elems(std::size_t unit, std::size_t column) const {
  if (columns_[unit][column].layout.extent == kernels::StateExtent::kPerTensor) {
    return table_.tensor_state_elems(unit);
  }
  return space_.layout(unit).elems();
}

void StoredTensors::for_parts(std::size_t unit, std::size_t column, std::uint64_t begin,
                              std::uint64_t end, std::byte* data, const Part& part) const {
  const kernels::StateLayout& layout = columns_[unit][column].layout;
  const auto& tensors = space_.layout(unit).tensors();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::uint64_t first = tensors[t].first_elem;
    std::uint64_t elems = tensors[t].spec.elems();
    if (layout.extent == kernels::StateExtent::kPerTensor) {
      const model::ParameterTable::StatePart sums = table_.tensor_state(unit, t);
      first = sums.begin;
      elems = sums.elems;
    }
    const Run run = overlap(first, elems, begin, end);
    if (run.elems == 0) continue;
    const std::size_t spec = first_spec(unit, t, column);
    if (layout.dtype == DType::kBlock8) {
      for_block8_parts(run, begin, data, spec, part);
      continue;
    }
    const std::uint64_t bytes = dtype_bytes(layout.dtype);
    std::byte* const at = data + (run.home - begin) * bytes;
    if (!tensors[t].spec.is_part()) {
      part(spec, run.tensor * bytes, at, run.elems * bytes);
      continue;
    }
    for (std::uint64_t done = 0; done < run.elems;) {
      const model::TensorSpec::WholeRun whole = tensors[t].spec.run_at(run.tensor + done);
      const std::uint64_t count = std::min(whole.elems, run.elems - done);
      part(spec, whole.first * bytes, at + done * bytes, count * bytes);
      done += count;
    }
  }
}

}  // namespace sluice::checkpoint
