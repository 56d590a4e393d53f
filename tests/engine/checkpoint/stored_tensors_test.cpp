// Tests of ParameterTable and StoredTensors: the facts of each tensor that the optimizer gets, and
// the bytes of a home that belong to each tensor of a checkpoint.
#include "engine/checkpoint/stored_tensors.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.hpp"
#include "engine/model/model.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::checkpoint {
namespace {

model::ModelShape small_shape() {
  // Vectors of 24, 72 and 96 elements: blocks that are not full.
  // Layers, hidden, heads, kv_heads, ffn, vocab, max_seq.
  return {model::ModelFamily::kGpt2, 2, 24, 2, 2, 96, 256, 16};
}

const model::PlacedTensor& tensor_of(const model::Model& model, const std::string& name,
                                     std::size_t* unit) {
  for (std::size_t u = 0; u < model.units().size(); ++u) {
    for (const model::PlacedTensor& tensor : model.units()[u].layer->layout().tensors()) {
      if (tensor.spec.name != name) continue;
      *unit = u;
      return tensor;
    }
  }
  throw InternalError("no tensor " + name);
}

kernels::ParameterSegment segment_of(const model::ParameterTable& table, const model::Model& model,
                                     const std::string& name) {
  std::size_t unit = 0;
  const model::PlacedTensor& tensor = tensor_of(model, name, &unit);
  const auto segments =
      table.segments(unit, tensor.first_elem, tensor.first_elem + tensor.spec.elems());
  EXPECT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments.at(0).begin, 0);
  return segments.at(0);
}

TEST(ParameterTable, TheFirstGroupThatMatchesCounts) {
  const model::Model model(small_shape());
  const model::ParameterTable table(
      model, {}, 0.1,
      {{"blocks.1.*.bias", 0.5, 0.25}, {"*.bias", 2.0, {}}, {"embedding.*", 1.0, 0.0}});
  const auto at = [&](const char* name) { return segment_of(table, model, name); };
  EXPECT_EQ(at("blocks.1.mlp.up.bias").lr_scale, 0.5f);
  EXPECT_EQ(at("blocks.1.mlp.up.bias").weight_decay, 0.25f);
  EXPECT_EQ(at("blocks.0.mlp.up.bias").lr_scale, 2.0f);
  EXPECT_EQ(at("blocks.0.mlp.up.bias").weight_decay, 0.0f);
  EXPECT_EQ(at("embedding.tokens.weight").weight_decay, 0.0f);
  EXPECT_EQ(at("blocks.0.mlp.up.weight").lr_scale, 1.0f);
  EXPECT_EQ(at("blocks.0.mlp.up.weight").weight_decay, 0.1f);
}

TEST(ParameterTable, RefusesAGroupThatNothingMatches) {
  const model::Model model(small_shape());
  const std::string words = testing::message_of<InputError>([&] {
    model::ParameterTable(model, {}, 0.1, {{"block.*", 1.0, {}}});
  });
  EXPECT_TRUE(testing::holds(words, "\"block.*\""));
  EXPECT_TRUE(testing::holds(words, "embedding.tokens.weight"));
}

// Random numbers are keyed by the element, however a unit is cut.
TEST(ParameterTable, KeysDoNotDependOnTheCut) {
  const model::Model model(small_shape());
  const model::ParameterTable table(model, {}, 0.1, {});
  std::set<std::uint64_t> seen;
  for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
    const std::uint64_t elems = model.units()[unit].layer->layout().elems();
    std::map<std::int64_t, std::uint64_t> whole;
    for (const kernels::ParameterSegment& segment : table.segments(unit, 0, elems)) {
      for (std::int64_t i = segment.begin; i < segment.end; ++i) {
        whole[i] = segment.first_key + static_cast<std::uint64_t>(i - segment.begin);
        EXPECT_TRUE(seen.insert(whole[i]).second);
      }
    }
    std::size_t covered = 0;
    for (std::uint64_t begin = 0; begin < elems; begin += 4096) {
      for (const kernels::ParameterSegment& segment : table.segments(unit, begin, begin + 4096)) {
        for (std::int64_t i = segment.begin; i < segment.end; ++i) {
          const std::uint64_t key =
              segment.first_key + static_cast<std::uint64_t>(i - segment.begin);
          EXPECT_EQ(whole.at(i + static_cast<std::int64_t>(begin)), key);
          ++covered;
        }
      }
    }
    EXPECT_EQ(covered, whole.size());
  }
}

TEST(ParameterTable, SumsOfWholeTensorsDoNotOverlap) {
  const model::Model model(small_shape());
  kernels::OptimizerOptions muon;
  muon.rule = kernels::OptimizerRule::kMuon;
  kernels::OptimizerOptions adafactor;
  adafactor.rule = kernels::OptimizerRule::kAdafactor;
  for (const kernels::OptimizerOptions& options : {muon, adafactor}) {
    const model::ParameterTable table(model, options, 0.1, {});
    for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
      std::uint64_t end = 0;
      for (std::size_t t = 0; t < model.units()[unit].layer->layout().tensors().size(); ++t) {
        const auto part = table.tensor_state(unit, t);
        if (part.elems == 0) continue;
        EXPECT_GE(part.begin, end);
        end = part.begin + part.elems;
      }
      EXPECT_LE(end, table.tensor_state_elems(unit));
    }
  }
  std::size_t unit = 0;
  const model::PlacedTensor& up = tensor_of(model, "blocks.0.mlp.up.weight", &unit);
  const auto& tensors = model.units()[unit].layer->layout().tensors();
  const auto index = static_cast<std::size_t>(&up - tensors.data());
  EXPECT_EQ(model::ParameterTable(model, adafactor, 0, {}).tensor_state(unit, index).elems,
            96u + 24u);
  EXPECT_EQ(model::ParameterTable(model, muon, 0, {}).tensor_state(unit, index).elems, 0u);
}

// Only runs of several ranks, and commits that they may go on from, have room between sums.
TEST(ParameterTable, SumsBreakAtBlocksOnlyForShards) {
  using Layout = model::ParameterTable::SumLayout;
  const model::Model model(small_shape());
  kernels::OptimizerOptions options;
  options.rule = kernels::OptimizerRule::kAdafactor;
  const model::ParameterTable dense(model, options, 0.1, {});
  const model::ParameterTable sharded(model, options, 0.1, {}, Layout::kForShards);
  std::uint64_t dense_elems = 0;
  std::uint64_t sharded_elems = 0;
  for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
    dense_elems += dense.tensor_state_elems(unit);
    sharded_elems += sharded.tensor_state_elems(unit);
    ASSERT_EQ(dense.tensor_borders(unit).size(), sharded.tensor_borders(unit).size());
    for (const auto& border : sharded.tensor_borders(unit)) {
      EXPECT_EQ(border.sum % kLawBlockElems, 0u);
    }
  }
  EXPECT_LT(dense_elems, sharded_elems);
}

// Every byte of every tensor is visited once, in order, by any cut; and padding never.
void expect_each_byte_once(const kernels::OptimizerOptions& options) {
  const model::Model model(small_shape());
  const model::ParameterTable table(model, options, 0.1, {});
  const StoredTensors stored(model, table, StoredTensors::Kinds::kAll);
  std::vector<std::uint64_t> done(stored.specs().size(), 0);
  for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
    for (std::size_t k = 0; k < stored.columns(unit).size(); ++k) {
      const DType dtype = stored.columns(unit)[k].layout.dtype;
      const std::uint64_t elems = stored.home_elems(unit, k);
      std::vector<std::byte> home(bytes_of(dtype, elems));
      std::vector<int> touched(home.size(), 0);
      for (std::uint64_t begin = 0; begin < elems; begin += 4096) {
        const std::uint64_t end = std::min(elems, begin + 4096);
        std::byte* const data = home.data() + bytes_of(dtype, begin);
        stored.for_parts(
            unit, k, begin, end, data,
            [&](std::size_t spec, std::uint64_t offset, std::byte* at, std::uint64_t bytes) {
              EXPECT_EQ(offset, done[spec]) << stored.specs()[spec].name;
              done[spec] += bytes;
              ASSERT_GE(at, home.data());
              ASSERT_LE(at + bytes, home.data() + home.size());
              for (std::uint64_t i = 0; i < bytes; ++i) ++touched[at - home.data() + i];
            });
      }
      for (const int times : touched) EXPECT_LE(times, 1);
    }
  }
  for (std::size_t spec = 0; spec < done.size(); ++spec) {
    EXPECT_EQ(done[spec], tensor_bytes(stored.specs()[spec].dtype, stored.specs()[spec].shape))
        << stored.specs()[spec].name;
  }
}

TEST(StoredTensors, VisitEachByteOnceWhateverTheFormat) {
  for (const kernels::OptimizerRule rule :
       {kernels::OptimizerRule::kAdamW, kernels::OptimizerRule::kAdafactor,
        kernels::OptimizerRule::kSm3, kernels::OptimizerRule::kMuon}) {
    for (const bool split : {false, true}) {
      for (const DType moments : {DType::kF32, DType::kBF16, DType::kBlock8}) {
        SCOPED_TRACE(kernels::optimizer_rule_name(rule));
        kernels::OptimizerOptions options;
        options.rule = rule;
        options.split_master = split;
        options.moments = moments;
        expect_each_byte_once(options);
      }
    }
  }
}

TEST(StoredTensors, NamesTellTheFormat) {
  const model::Model model(small_shape());
  kernels::OptimizerOptions options;
  options.split_master = true;
  options.moments = DType::kBlock8;
  const model::ParameterTable table(model, options, 0.1, {});
  const StoredTensors stored(model, table, StoredTensors::Kinds::kAll);
  std::map<std::string, DType> types;
  for (const SafetensorsSpec& spec : stored.specs()) types[spec.name] = spec.dtype;
  EXPECT_EQ(types.at("embedding.tokens.weight"), DType::kBF16);
  EXPECT_EQ(types.at("remainder.embedding.tokens.weight"), DType::kI16);
  EXPECT_EQ(types.at("moment1.embedding.tokens.weight"), DType::kU8);
  EXPECT_EQ(types.at("moment1_scale.embedding.tokens.weight"), DType::kF32);
  EXPECT_EQ(types.count("master.embedding.tokens.weight"), 0u);
}

}  // namespace
}  // namespace sluice::checkpoint
