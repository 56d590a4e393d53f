#include "engine/checkpoint/model_state.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "base/error.hpp"
#include "base/rng.hpp"
#include "engine/checkpoint/weights_hash.hpp"
#include "kernels/split_master.hpp"

namespace sluice::checkpoint {
namespace {

std::map<std::string, std::string> file_metadata() {
  return {{"format", "sluice"}};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

// The part of a tensor inside elements [begin, end) of its unit, in the tensor's own elements.
struct Overlap {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  bool empty() const { return first >= last; }
};

Overlap overlap(const model::PlacedTensor& tensor, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t tensor_end = tensor.first_elem + tensor.spec.elems();
  const std::uint64_t first = std::max(begin, tensor.first_elem);
  const std::uint64_t last = std::min(end, tensor_end);
  if (first >= last) return {};
  return {first - tensor.first_elem, last - tensor.first_elem};
}

// Elements [part.first, part.last) of a tensor, fp32.
void fill_tensor(const kernels::host::Parallel& parallel, const model::TensorSpec& spec,
                 std::uint64_t seed, Overlap part, float* out) {
  if (spec.init != model::Init::kNormal) {
    std::fill(out, out + (part.last - part.first), spec.init == model::Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  const CounterRng rng(seed, stream_of(("init/" + spec.name).c_str()));
  const auto elems = static_cast<std::int64_t>(part.last - part.first);
  // Numbers are drawn by position in the whole tensor, whoever holds a part of it. A window of the
  // store gives 32 threads a block each, of some 0.2 ms.
  constexpr std::int64_t kBlockElems = runtime::StateStore::kWindowElems / 32;
  parallel.for_blocks(elems, kBlockElems, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end;) {
      const auto run = spec.run_at(part.first + static_cast<std::uint64_t>(i));
      const std::int64_t stop = std::min(end, i + static_cast<std::int64_t>(run.elems));
      for (std::uint64_t at = run.first; i < stop; ++i, ++at) {
        out[i] = spec.init_std * rng.normal(at);
      }
    }
  });
}

void check_present(const SafetensorsReader& reader, const std::vector<SafetensorsSpec>& expected) {
  for (const SafetensorsSpec& spec : expected) {
    const SafetensorsTensor* tensor = reader.find(spec.name);
    if (tensor == nullptr) {
      throw InputError(reader.path() + ": is of another model: tensor '" + spec.name + "' " +
                       shape_text(spec.shape) + " is missing");
    }
    if (tensor->shape != spec.shape || tensor->dtype != spec.dtype) {
      throw InputError(reader.path() + ": is of another model: tensor '" + spec.name + "' is " +
                       std::string(dtype_name(tensor->dtype)) + " " + shape_text(tensor->shape) +
                       ", this model's is " + std::string(dtype_name(spec.dtype)) + " " +
                       shape_text(spec.shape));
    }
  }
}

// Throws InputError if the file has a tensor that this model lacks. only_weights: optimizer state
// is not checked.
void check_known(const SafetensorsReader& reader, const std::vector<SafetensorsSpec>& expected,
                 bool only_weights) {
  std::unordered_set<std::string_view> names;
  for (const SafetensorsSpec& spec : expected) names.insert(spec.name);
  for (const SafetensorsTensor& tensor : reader.tensors()) {
    if (names.contains(tensor.name) || (only_weights && is_optimizer_state(tensor.name))) continue;
    throw InputError(reader.path() + ": is of another model: this one has no tensor '" +
                     tensor.name + "'");
  }
}

// Stores the weight rounded from its master, and the master or its remainder (split_master). Either
// may be null. Weights without a master are the values.
void store_weights(const kernels::OptimizerOptions& options, std::span<const float> values,
                   std::byte* weight, std::byte* master) {
  if (weight != nullptr && options.weight == DType::kF32) {
    std::memcpy(weight, values.data(), values.size_bytes());
  } else if (weight != nullptr && options.weight == DType::kF16) {
    auto* const rounded = reinterpret_cast<f16*>(weight);
    for (std::size_t i = 0; i < values.size(); ++i) rounded[i] = f16_from_float(values[i]);
  } else if (weight != nullptr) {
    auto* const rounded = reinterpret_cast<bf16*>(weight);
    for (std::size_t i = 0; i < values.size(); ++i) rounded[i] = bf16_weight_from_float(values[i]);
  }
  if (master == nullptr) return;
  if (!options.split_master) {
    std::memcpy(master, values.data(), values.size_bytes());
    return;
  }
  auto* const remainders = reinterpret_cast<std::int16_t*>(master);
  for (std::size_t i = 0; i < values.size(); ++i) {
    remainders[i] = kernels::split_master(values[i]).remainder;
  }
}

// The runs of a part's own elements that lie within elements [begin, end) of the whole tensor.
std::vector<schedule::ElemRange> runs_within(const model::TensorSpec& spec, std::uint64_t begin,
                                             std::uint64_t end) {
  std::vector<schedule::ElemRange> runs;
  for (std::uint64_t at = 0; at < spec.own_elems();) {
    auto run = spec.run_at(at);
    run.elems = std::min(run.elems, spec.own_elems() - at);
    const std::uint64_t first = std::max(run.first, begin);
    const std::uint64_t last = std::min(run.first + run.elems, end);
    if (first < last) {
      const schedule::ElemRange found{at + first - run.first, at + last - run.first};
      if (!runs.empty() && runs.back().end == found.begin) {
        runs.back().end = found.end;
      } else {
        runs.push_back(found);
      }
    }
    at += run.elems;
  }
  return runs;
}

bool has_parts(const model::UnitLayout& layout) {
  return std::any_of(layout.tensors().begin(), layout.tensors().end(),
                     [](const model::PlacedTensor& tensor) { return tensor.spec.is_part(); });
}

}  // namespace

std::vector<float> ModelState::initial_values(const model::UnitLayout& layout, std::uint64_t seed,
                                              std::uint64_t begin, std::uint64_t end) const {
  std::vector<float> values(end - begin, 0.0f);
  for (const model::PlacedTensor& tensor : layout.tensors()) {
    const Overlap part = overlap(tensor, begin, end);
    if (part.empty()) continue;
    fill_tensor(parallel_, tensor.spec, seed, part,
                values.data() + (tensor.first_elem + part.first - begin));
  }
  return values;
}

// Fills the weight and, if there is one, the master. They are visited together unless a rank keeps
// whole weights and a shard of the masters: then the values are made twice.
void ModelState::fill_weights(std::size_t unit, std::uint64_t seed) {
  const auto at = static_cast<std::int32_t>(unit);
  const model::UnitLayout& layout = space_.layout(unit);
  const auto fill = [&](const std::vector<StateKind>& kinds) {
    store_.visit(kinds, at, 0, layout.elems(), runtime::StateStore::Access::kWrite,
                 [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                   const std::vector<float> values = initial_values(layout, seed, begin, end);
                   const bool weights = kinds.front() == StateKind::kWeight;
                   store_weights(options(unit), values, weights ? data.front() : nullptr,
                                 kinds.back() == StateKind::kMaster ? data.back() : nullptr);
                 });
  };
  if (!options(unit).has_master()) return fill({StateKind::kWeight});
  if (store_.range(StateKind::kWeight, at) == store_.range(StateKind::kMaster, at)) {
    return fill({StateKind::kWeight, StateKind::kMaster});
  }
  fill({StateKind::kWeight});
  fill({StateKind::kMaster});
}

void ModelState::zero(const StateColumn& column, std::size_t unit, std::uint64_t elems) {
  const std::array<StateKind, 1> kind{column.kind};
  store_.visit(kind, static_cast<std::int32_t>(unit), 0, elems, runtime::StateStore::Access::kWrite,
               [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                 std::memset(data[0], 0, bytes_of(column.layout.dtype, end - begin));
               });
}

void ModelState::initialize(std::uint64_t seed) {
  const StoredTensors tensors(space_, table_, StoredTensors::Kinds::kAll);
  for (std::size_t unit = 0; unit < space_.unit_count(); ++unit) {
    fill_weights(unit, seed);
    for (std::size_t k = 0; k < tensors.columns(unit).size(); ++k) {
      const StateColumn& column = tensors.columns(unit)[k];
      if (column.kind == StateKind::kWeight || column.kind == StateKind::kMaster) continue;
      zero(column, unit, tensors.home_elems(unit, k));
    }
  }
}

void ModelState::visit_tensor(std::size_t unit, const StateColumn& column,
                              const model::PlacedTensor& tensor, const TensorVisitor& visitor) {
  if (tensor.spec.is_part()) return visit_joined(unit, column, tensor, visitor);
  const std::uint64_t bytes = dtype_bytes(column.layout.dtype);
  const std::uint64_t end = tensor.first_elem + tensor.spec.elems();
  store_.visit_whole(
      column.kind, column.layout, static_cast<std::int32_t>(unit),
      tensor.first_elem / kLawBlockElems * kLawBlockElems, round_up(end, kLawBlockElems),
      [&](std::uint64_t begin, std::uint64_t piece_end, std::span<std::byte* const> data) {
        const Overlap part = overlap(tensor, begin, piece_end);
        if (part.empty()) return;
        const std::uint64_t at = tensor.first_elem + part.first - begin;
        visitor(data[0] + at * bytes, (part.last - part.first) * bytes);
      });
}

// Each rank writes its elements into zeros, and the ranks add their pieces as integers: a sum of
// one number and zeros is that number.
void ModelState::visit_joined(std::size_t unit, const StateColumn& column,
                              const model::PlacedTensor& tensor, const TensorVisitor& visitor) {
  const model::TensorSpec& spec = tensor.spec;
  const std::uint64_t bytes = dtype_bytes(column.layout.dtype);
  const std::array<StateKind, 1> kind{column.kind};
  constexpr std::uint64_t kPieceElems = runtime::StateStore::kWindowElems;
  std::vector<std::byte> piece(kPieceElems * bytes);
  for (std::uint64_t begin = 0; begin < spec.whole_elems(); begin += kPieceElems) {
    const std::uint64_t end = std::min(begin + kPieceElems, spec.whole_elems());
    std::fill(piece.begin(), piece.end(), std::byte{0});
    for (const schedule::ElemRange& own : runs_within(spec, begin, end)) {
      if (!store_.brings(column.kind, static_cast<std::int32_t>(unit))) break;
      const std::uint64_t first = tensor.first_elem + own.begin;
      const std::uint64_t last = tensor.first_elem + own.end;
      store_.visit(kind, static_cast<std::int32_t>(unit), first / kLawBlockElems * kLawBlockElems,
                   round_up(last, kLawBlockElems), runtime::StateStore::Access::kRead,
                   [&](std::uint64_t from, std::uint64_t to, std::span<std::byte* const> data) {
                     for (std::uint64_t at = std::max(from, first); at < std::min(to, last);) {
                       const auto run = spec.run_at(at - tensor.first_elem);
                       const std::uint64_t elems = std::min(run.elems, std::min(to, last) - at);
                       std::memcpy(piece.data() + (run.first - begin) * bytes,
                                   data[0] + (at - from) * bytes, elems * bytes);
                       at += elems;
                     }
                   });
    }
    store_.join(piece);
    visitor(piece.data(), (end - begin) * bytes);
  }
}

void ModelState::write(const std::string& path, const StoredTensors& tensors, const Notes& notes,
                       bool has_digest) {
  std::optional<SafetensorsWriter> writer;
  Notes metadata = file_metadata();
  metadata.insert(notes.begin(), notes.end());
  if (store_.writes_files()) writer.emplace(path, tensors.specs(), metadata, has_digest);
  for (std::size_t unit = 0; unit < space_.unit_count(); ++unit) {
    for (std::size_t k = 0; k < tensors.columns(unit).size(); ++k) {
      const StateColumn& column = tensors.columns(unit)[k];
      if (has_parts(space_.layout(unit))) {
        for (std::size_t t = 0; t < space_.layout(unit).tensors().size(); ++t) {
          visit_tensor(unit, column, space_.layout(unit).tensors()[t],
                       [&](std::byte* data, std::uint64_t bytes) {
                         if (writer) writer->append(tensors.first_spec(unit, t, k), {data, bytes});
                       });
        }
        continue;
      }
      store_.visit_whole(
          column.kind, column.layout, static_cast<std::int32_t>(unit), 0,
          tensors.home_elems(unit, k),
          [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
            if (!writer) return;
            tensors.for_parts(
                unit, k, begin, end, data[0],
                [&](std::size_t spec, std::uint64_t, std::byte* at, std::uint64_t bytes) {
                  writer->append(spec, {at, bytes});
                });
          });
    }
  }
  if (writer) writer->finish();
}

std::uint64_t ModelState::saved_bytes(const model::ParameterSpace& space,
                                      const model::ParameterTable& table) {
  const StoredTensors tensors(space, table, StoredTensors::Kinds::kAll);
  return safetensors_bytes(tensors.specs(), file_metadata());
}

std::uint64_t ModelState::exported_bytes(const model::ParameterSpace& space,
                                         const model::ParameterTable& table) {
  const StoredTensors tensors(space, table, StoredTensors::Kinds::kWeights);
  return safetensors_bytes(tensors.specs(), file_metadata());
}

void ModelState::save(const std::string& path, const Notes& notes, bool has_digest) {
  write(path, StoredTensors(space_, table_, StoredTensors::Kinds::kAll), notes, has_digest);
}

void ModelState::export_weights(const std::string& path) {
  const std::string temporary = path + ".tmp";
  write(temporary, StoredTensors(space_, table_, StoredTensors::Kinds::kWeights), {}, false);
  if (store_.writes_files()) rename_durably(temporary, path);
}

void ModelState::check_weights(const SafetensorsReader& reader, const model::ParameterSpace& space,
                               const model::ParameterTable& table) {
  const StoredTensors weights(space, table, StoredTensors::Kinds::kWeights);
  check_present(reader, weights.specs());
  check_known(reader, weights.specs(), true);
}

void ModelState::check(const SafetensorsReader& reader, const model::ParameterSpace& space,
                       const model::ParameterTable& table) {
  const StoredTensors tensors(space, table, StoredTensors::Kinds::kAll);
  const std::vector<SafetensorsSpec>& expected = tensors.specs();
  check_present(reader, expected);
  check_known(reader, expected, false);
}

void ModelState::load(const SafetensorsReader& reader) {
  const StoredTensors tensors(space_, table_, StoredTensors::Kinds::kAll);
  for (std::size_t unit = 0; unit < space_.unit_count(); ++unit) {
    for (std::size_t k = 0; k < tensors.columns(unit).size(); ++k) {
      const StateColumn& column = tensors.columns(unit)[k];
      const std::array<StateKind, 1> kind{column.kind};
      store_.visit(
          kind, static_cast<std::int32_t>(unit), 0, tensors.home_elems(unit, k),
          runtime::StateStore::Access::kWrite,
          [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
            std::memset(data[0], 0, bytes_of(column.layout.dtype, end - begin));
            tensors.for_parts(
                unit, k, begin, end, data[0],
                [&](std::size_t spec, std::uint64_t offset, std::byte* at, std::uint64_t bytes) {
                  reader.read(*reader.find(tensors.specs()[spec].name), offset, {at, bytes});
                });
          });
    }
  }
}

std::string ModelState::weights_hash_in(const SafetensorsReader& reader,
                                        const model::ParameterSpace& space,
                                        const model::ParameterTable& table) {
  WeightsHasher hasher;
  std::vector<std::byte> piece(kMiB);
  for (std::size_t unit = 0; unit < space.unit_count(); ++unit) {
    for (const model::PlacedTensor& tensor : space.layout(unit).tensors()) {
      hasher.begin_tensor(tensor.spec.name, table.options(unit).weight, tensor.spec.file_shape());
      const SafetensorsTensor& stored = *reader.find(tensor.spec.name);
      for (std::uint64_t at = 0; at < stored.bytes(); at += piece.size()) {
        const std::uint64_t bytes = std::min<std::uint64_t>(piece.size(), stored.bytes() - at);
        reader.read(stored, at, std::span(piece).first(bytes));
        hasher.update(piece.data(), bytes);
      }
      hasher.end_tensor();
    }
  }
  return hasher.finish();
}

std::string ModelState::weights_hash() {
  WeightsHasher hasher;
  for (std::size_t unit = 0; unit < space_.unit_count(); ++unit) {
    for (const model::PlacedTensor& tensor : space_.layout(unit).tensors()) {
      hasher.begin_tensor(tensor.spec.name, options(unit).weight, tensor.spec.file_shape());
      visit_tensor(unit, weight_column(options(unit).weight), tensor,
                   [&](std::byte* data, std::uint64_t bytes) { hasher.update(data, bytes); });
      hasher.end_tensor();
    }
  }
  return hasher.finish();
}

}  // namespace sluice::checkpoint
