// Keys of stochastic rounding in a tensor group: an element has the same key on every rank that
// holds it, and on a rank alone. So an update of parts has the bits of an update of the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "engine/model/model.hpp"
#include "engine/model/parameter_table.hpp"
#include "kernels/kernels.hpp"
#include "kernels/key_runs.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::model {
namespace {

struct Case {
  ModelFamily family;
  std::int64_t ranks, kv_heads;
  bool tied, sequence;
};

ModelShape shape_of(const Case& c) {
  // Layers, hidden, heads, kv_heads, ffn, vocab, max_seq.
  return {c.family, 2, 24, 4, c.kv_heads, 40, 257, 7, c.tied};
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    for (const std::int64_t ranks : {2, 4}) {
      for (const std::int64_t kv_heads : {4, 2, 1}) {
        for (const bool tied : {true, false}) {
          for (const bool sequence : {true, false}) {
            list.push_back({family, ranks, kv_heads, tied, sequence});
          }
        }
      }
    }
  }
  return list;
}

std::string name_of(const Case& c) {
  return (c.family == ModelFamily::kGpt2 ? "gpt2, " : "llama, ") + std::to_string(c.ranks) +
         " ranks, " + std::to_string(c.kv_heads) + " kv heads" + (c.tied ? ", tied" : "") +
         (c.sequence ? ", rows cut" : "");
}

// By tensor: the keys of its elements in a rank's order. The units are cut into chunks.
std::map<std::string, std::vector<std::uint64_t>> keys_of(const Model& model,
                                                          std::uint64_t chunk_elems) {
  const ParameterTable table(model, {}, 0.1, {});
  std::map<std::string, std::vector<std::uint64_t>> keys;
  for (std::size_t unit = 0; unit < model.unit_count(); ++unit) {
    const UnitLayout& layout = model.layout(unit);
    std::map<std::uint64_t, std::uint64_t> by_elem;
    for (std::uint64_t begin = 0; begin < layout.elems(); begin += chunk_elems) {
      const std::uint64_t end = std::min(begin + chunk_elems, layout.elems());
      for (const kernels::ParameterSegment& segment : table.segments(unit, begin, end)) {
        for (std::int64_t i = segment.begin; i < segment.end; ++i) {
          const std::uint64_t elem = begin + static_cast<std::uint64_t>(i);
          EXPECT_TRUE(by_elem.emplace(elem, kernels::key_at(segment, i)).second);
        }
      }
    }
    std::size_t placed = 0;
    for (const PlacedTensor& tensor : layout.tensors()) {
      std::vector<std::uint64_t>& of = keys[tensor.spec.name];
      for (std::uint64_t i = 0; i < tensor.spec.elems(); ++i) {
        of.push_back(by_elem.at(tensor.first_elem + i));
      }
      placed += of.size();
    }
    EXPECT_EQ(by_elem.size(), placed) << "a gap has a key";
  }
  return keys;
}

TEST(TensorKeys, AreThoseOfTheWholeModel) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const auto whole = keys_of(Model(shape_of(c)), std::uint64_t{1} << 40);
    std::map<std::string, std::vector<int>> owners;
    for (std::int64_t rank = 0; rank < c.ranks; ++rank) {
      const Model model(shape_of(c), {rank, c.ranks, c.sequence});
      const auto keys = keys_of(model, 4096);
      for (std::size_t unit = 0; unit < model.unit_count(); ++unit) {
        for (const PlacedTensor& tensor : model.layout(unit).tensors()) {
          const TensorSpec& spec = tensor.spec;
          const std::vector<std::uint64_t>& wanted = whole.at(spec.name);
          std::vector<int>& owned = owners[spec.name];
          owned.resize(wanted.size());
          for (std::uint64_t i = 0; i < spec.elems(); ++i) {
            const std::uint64_t elem = spec.run_at(i).first;
            ASSERT_EQ(keys.at(spec.name)[i], wanted[elem]) << spec.name << ", " << i;
            if (i < spec.own_elems() && (spec.is_part() || rank == 0)) ++owned[elem];
          }
        }
      }
    }
    for (const auto& [name, owned] : owners) {
      EXPECT_EQ(std::count(owned.begin(), owned.end(), 1),
                static_cast<std::ptrdiff_t>(owned.size()))
          << name;
    }
    EXPECT_EQ(owners.size(), whole.size());
  }
}

// --- updates
// ---------------------------------------------------------------------------------------

// The arrays of a unit, as bytes.
struct UnitArrays {
  struct Array {
    DType dtype = DType::kF32;
    std::vector<std::byte> bytes;
    std::byte* at(std::uint64_t elem) { return bytes.data() + elem * dtype_bytes(dtype); }
  };
  Array grad, weight, master, moment1, moment2;

  UnitArrays(const kernels::OptimizerOptions& options, DType grad_dtype, std::uint64_t elems) {
    grad.dtype = grad_dtype;
    weight.dtype = options.weight;
    master.dtype = kernels::state_layout(options, StateKind::kMaster).dtype;
    moment1.dtype = moment2.dtype = options.moments;
    for (Array* array : all()) array->bytes.resize(elems * dtype_bytes(array->dtype));
  }
  std::vector<Array*> all() { return {&grad, &weight, &master, &moment1, &moment2}; }
};

class PartUpdate : public ::testing::TestWithParam<kernels::OptimizerRule> {
 protected:
  // Gradients, states and weights that a step may find: moments of a gradient's size.
  void fill(UnitArrays& arrays, const UnitLayout& layout) {
    const CounterRng random(11, stream_of("test/part-update"));
    for (const PlacedTensor& tensor : layout.tensors()) {
      for (std::uint64_t i = 0; i < tensor.spec.elems(); ++i) {
        const std::uint64_t elem = tensor.first_elem + i;
        std::uint64_t draw = 8 * elem;
        const auto put = [&](UnitArrays::Array& array, float value) {
          if (array.dtype == DType::kF32) {
            std::memcpy(array.at(elem), &value, sizeof value);
          } else {
            const bf16 rounded = bf16_from_float(value);
            std::memcpy(array.at(elem), &rounded, sizeof rounded);
          }
        };
        put(arrays.grad, 0.01f * random.normal(draw++));
        put(arrays.weight, 0.1f * random.normal(draw++));
        if (arrays.master.dtype == DType::kF32) put(arrays.master, 0.1f * random.normal(draw++));
        const float moment = 0.01f * random.normal(draw++);
        put(arrays.moment1, moment);
        put(arrays.moment2, moment * moment);
      }
    }
  }

  void update(UnitArrays& arrays, const ParameterTable& table, std::size_t unit,
              std::uint64_t begin, std::uint64_t end) {
    kernels::UpdateBuffers buffers;
    buffers.grad = arrays.grad.at(begin);
    buffers.grad_dtype = arrays.grad.dtype;
    buffers.weight = arrays.weight.at(begin);
    buffers.master = arrays.master.at(begin);
    buffers.moment1 = arrays.moment1.at(begin);
    if (GetParam() == kernels::OptimizerRule::kAdamW) buffers.moment2 = arrays.moment2.at(begin);
    buffers.elems = static_cast<std::int64_t>(end - begin);
    kernels_->update(table.options(), buffers, table.segments(unit, begin, end),
                     {.lr = 1e-3f, .grad_scale = 1, .step = 3}, nullptr);
  }

  // Updates a unit's parts, in shards of 4,096 elements, from the state in front of the whole's
  // update.
  void expect_part(const Model& model, std::size_t unit, const kernels::OptimizerOptions& options,
                   UnitArrays before, UnitArrays after, const UnitLayout& whole) {
    const UnitLayout& layout = model.layout(unit);
    UnitArrays part(options, before.grad.dtype, layout.elems());
    const auto each = [&](const auto& visit) {  // (whole's array, whole's element, part's)
      for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
        const PlacedTensor& tensor = layout.tensors()[t];
        for (std::uint64_t i = 0; i < tensor.spec.elems(); ++i) {
          visit(whole.tensors()[t].first_elem + tensor.spec.run_at(i).first, tensor.first_elem + i);
        }
      }
    };
    for (std::size_t a = 0; a < part.all().size(); ++a) {
      each([&](std::uint64_t from, std::uint64_t to) {
        std::memcpy(part.all()[a]->at(to), before.all()[a]->at(from),
                    dtype_bytes(part.all()[a]->dtype));
      });
    }
    const ParameterTable table(model, options, 0.1, {});
    for (std::uint64_t begin = 0; begin < layout.elems(); begin += 4096) {
      update(part, table, unit, begin, begin + 4096);
    }
    for (std::size_t a = 0; a < part.all().size(); ++a) {
      std::size_t apart = 0;
      each([&](std::uint64_t from, std::uint64_t to) {
        apart += std::memcmp(part.all()[a]->at(to), after.all()[a]->at(from),
                             dtype_bytes(part.all()[a]->dtype)) != 0;
      });
      EXPECT_EQ(apart, 0u) << "array " << a << ", unit " << unit;
    }
  }

  std::unique_ptr<kernels::Kernels> kernels_ = kernels::make_host_kernels({1});
};

TEST_P(PartUpdate, HasTheBitsOfTheWholeTensors) {
  for (const Case& c : cases()) {
    if (c.sequence || c.tied) continue;  // neither changes a unit's elements
    for (const bool split : {false, true}) {
      SCOPED_TRACE(name_of(c) + (split ? ", split" : ""));
      kernels::OptimizerOptions options;
      options.rule = GetParam();
      options.split_master = split;
      options.moments = DType::kBF16;
      const DType grad_dtype = split ? DType::kBF16 : DType::kF32;
      const Model whole(shape_of(c));
      const ParameterTable table(whole, options, 0.1, {});
      for (std::size_t unit = 0; unit < whole.unit_count(); ++unit) {
        const UnitLayout& layout = whole.layout(unit);
        UnitArrays arrays(options, grad_dtype, layout.elems());
        fill(arrays, layout);
        const UnitArrays before = arrays;
        update(arrays, table, unit, 0, layout.elems());
        EXPECT_NE(arrays.moment1.bytes, before.moment1.bytes);
        for (std::int64_t rank = 0; rank < c.ranks; ++rank) {
          expect_part(Model(shape_of(c), {rank, c.ranks}), unit, options, before, arrays, layout);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, PartUpdate,
                         ::testing::Values(kernels::OptimizerRule::kAdamW,
                                           kernels::OptimizerRule::kLion));

}  // namespace
}  // namespace sluice::model
