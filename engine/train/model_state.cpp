#include "engine/train/model_state.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/rng.hpp"
#include "engine/train/weights_hash.hpp"

namespace sluice {
namespace {

std::string tensor_name(StateKind kind, const std::string& name) {
  return kind == StateKind::kWeight ? name : std::string(state_kind_name(kind)) + "." + name;
}

DType state_dtype(StateKind kind, DType weight_dtype) {
  return kind == StateKind::kWeight ? weight_dtype : DType::kF32;
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

Overlap overlap(const PlacedTensor& tensor, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t tensor_end = tensor.first_elem + tensor.spec.elems();
  const std::uint64_t first = std::max(begin, tensor.first_elem);
  const std::uint64_t last = std::min(end, tensor_end);
  if (first >= last) return {};
  return {first - tensor.first_elem, last - tensor.first_elem};
}

// Elements [part.first, part.last) of a tensor, fp32.
void fill_tensor(const host::Parallel& parallel, const TensorSpec& spec, std::uint64_t seed,
                 Overlap part, float* out) {
  if (spec.init != Init::kNormal) {
    std::fill(out, out + (part.last - part.first), spec.init == Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  const CounterRng rng(seed, stream_of(("init/" + spec.name).c_str()));
  const auto elems = static_cast<std::int64_t>(part.last - part.first);
  parallel.for_blocks(elems, 8192, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      out[i] = spec.init_std * rng.normal(part.first + static_cast<std::uint64_t>(i));
    }
  });
}

}  // namespace

std::vector<StateKind> ModelState::kinds(DType weight_dtype) {
  if (weight_dtype == DType::kF32) {
    return {StateKind::kWeight, StateKind::kMoment1, StateKind::kMoment2};
  }
  return {StateKind::kWeight, StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2};
}

// data: weight, then master where there is one, then the moments.
void ModelState::fill_piece(const UnitLayout& layout, std::uint64_t seed, std::uint64_t begin,
                            std::uint64_t end, std::span<std::byte* const> data) const {
  const std::uint64_t elems = end - begin;
  for (std::size_t i = 1; i < data.size(); ++i) std::memset(data[i], 0, elems * sizeof(float));
  auto* master = reinterpret_cast<float*>(has_master() ? data[1] : data[0]);
  std::memset(master, 0, elems * sizeof(float));
  for (const PlacedTensor& tensor : layout.tensors()) {
    const Overlap part = overlap(tensor, begin, end);
    if (part.empty()) continue;
    fill_tensor(parallel_, tensor.spec, seed, part,
                master + (tensor.first_elem + part.first - begin));
  }
  if (!has_master()) return;
  auto* weight = reinterpret_cast<bf16*>(data[0]);
  for (std::uint64_t i = 0; i < elems; ++i) weight[i] = bf16_weight_from_float(master[i]);
}

void ModelState::initialize(std::uint64_t seed) {
  const std::vector<StateKind> all = kinds(weight_dtype_);
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    const UnitLayout& layout = model_.units()[unit].layer->layout();
    store_.visit(all, static_cast<std::int32_t>(unit), 0, layout.elems(),
                 StateStore::Access::kWrite,
                 [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                   fill_piece(layout, seed, begin, end, data);
                 });
  }
}

std::vector<SafetensorsSpec> ModelState::specs(const Model& model, DType weight_dtype,
                                               const std::vector<StateKind>& kinds) {
  std::vector<SafetensorsSpec> specs;
  for (const Unit& unit : model.units()) {
    for (const PlacedTensor& tensor : unit.layer->layout().tensors()) {
      for (const StateKind kind : kinds) {
        specs.push_back({tensor_name(kind, tensor.spec.name), state_dtype(kind, weight_dtype),
                         tensor.spec.shape});
      }
    }
  }
  return specs;
}

void ModelState::write(const std::string& path, const std::vector<StateKind>& kinds) {
  SafetensorsWriter writer(path, specs(model_, weight_dtype_, kinds), {{"format", "sluice"}});
  std::size_t first_spec = 0;
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    const UnitLayout& layout = model_.units()[unit].layer->layout();
    store_.visit(
        kinds, static_cast<std::int32_t>(unit), 0, layout.elems(), StateStore::Access::kRead,
        [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
          for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
            const PlacedTensor& tensor = layout.tensors()[t];
            const Overlap part = overlap(tensor, begin, end);
            if (part.empty()) continue;
            const std::uint64_t at = tensor.first_elem + part.first - begin;
            for (std::size_t k = 0; k < kinds.size(); ++k) {
              const std::uint64_t bytes = dtype_bytes(state_dtype(kinds[k], weight_dtype_));
              writer.append(first_spec + t * kinds.size() + k,
                            {data[k] + at * bytes, (part.last - part.first) * bytes});
            }
          }
        });
    first_spec += layout.tensors().size() * kinds.size();
  }
  writer.finish();
}

void ModelState::save(const std::string& path) {
  write(path, kinds(weight_dtype_));
}

void ModelState::export_weights(const std::string& path) {
  const std::string temporary = path + ".tmp";
  write(temporary, {StateKind::kWeight});
  rename_durably(temporary, path);
}

void ModelState::check(const SafetensorsReader& reader, const Model& model, DType weight_dtype) {
  const std::vector<SafetensorsSpec> expected = specs(model, weight_dtype, kinds(weight_dtype));
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
  if (reader.tensors().size() != expected.size()) {
    for (const SafetensorsTensor& tensor : reader.tensors()) {
      const bool known = std::any_of(expected.begin(), expected.end(),
                                     [&](const auto& spec) { return spec.name == tensor.name; });
      if (!known) {
        throw InputError(reader.path() + ": is of another model: this one has no tensor '" +
                         tensor.name + "'");
      }
    }
  }
}

void ModelState::load(const SafetensorsReader& reader) {
  const std::vector<StateKind> all = kinds(weight_dtype_);
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    const UnitLayout& layout = model_.units()[unit].layer->layout();
    store_.visit(
        all, static_cast<std::int32_t>(unit), 0, layout.elems(), StateStore::Access::kWrite,
        [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
          for (std::size_t k = 0; k < all.size(); ++k) {
            const std::uint64_t bytes = dtype_bytes(state_dtype(all[k], weight_dtype_));
            std::memset(data[k], 0, (end - begin) * bytes);
            for (const PlacedTensor& tensor : layout.tensors()) {
              const Overlap part = overlap(tensor, begin, end);
              if (part.empty()) continue;
              const std::uint64_t at = tensor.first_elem + part.first - begin;
              reader.read(*reader.find(tensor_name(all[k], tensor.spec.name)), part.first * bytes,
                          {data[k] + at * bytes, (part.last - part.first) * bytes});
            }
          }
        });
  }
}

std::string ModelState::weights_hash() {
  WeightsHasher hasher;
  const std::array<StateKind, 1> weight{StateKind::kWeight};
  const std::uint64_t bytes = dtype_bytes(weight_dtype_);
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    const UnitLayout& layout = model_.units()[unit].layer->layout();
    for (const PlacedTensor& tensor : layout.tensors()) {
      hasher.begin_tensor(tensor.spec.name, weight_dtype_, tensor.spec.shape);
      const std::uint64_t end = tensor.first_elem + tensor.spec.elems();
      const std::uint64_t visit_begin = tensor.first_elem / kNormBlockElems * kNormBlockElems;
      store_.visit(
          weight, static_cast<std::int32_t>(unit), visit_begin, round_up(end, kNormBlockElems),
          StateStore::Access::kRead,
          [&](std::uint64_t begin, std::uint64_t piece_end, std::span<std::byte* const> data) {
            const Overlap part = overlap(tensor, begin, piece_end);
            if (part.empty()) return;
            const std::uint64_t at = tensor.first_elem + part.first - begin;
            hasher.update(data[0] + at * bytes, (part.last - part.first) * bytes);
          });
      hasher.end_tensor();
    }
  }
  return hasher.finish();
}

}  // namespace sluice
