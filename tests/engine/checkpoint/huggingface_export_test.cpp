// The export for transformers: its header compared with one that transformers wrote, and its
// elements compared with the weights that they come from. (tests/tools/sluice/huggingface_peer.py
// loads it with the peer.)
#include "engine/checkpoint/huggingface_export.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {
namespace {

using nlohmann::json;

// These are the shapes of tests/engine/checkpoint/record_huggingface_headers.py.
model::ModelShape gpt2_shape() {
  // Layers, hidden, heads, kv_heads, ffn, vocab, max_seq.
  return {model::ModelFamily::kGpt2, 2, 24, 3, 3, 40, 256, 32};
}

model::ModelShape llama_shape() {
  model::ModelShape shape = gpt2_shape();
  shape.family = model::ModelFamily::kLlama;
  shape.heads = 6;
  shape.kv_heads = 2;
  shape.tie_embeddings = false;
  return shape;
}

json read_json(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

TEST(HuggingFaceExport, HasTheTensorsThatTransformersSaves) {
  const json recorded = read_json(SLUICE_TEST_DATA "/huggingface_headers.json").at("models");
  const auto expect_same = [&](const char* name, const model::ModelShape& shape, DType weight) {
    json ours = json::object();
    for (const auto& tensor : checkpoint::huggingface_tensors(shape, weight)) {
      ours[tensor.spec.name] = {dtype_name(tensor.spec.dtype), tensor.spec.shape};
    }
    EXPECT_EQ(ours, recorded.at(name)) << name;
  };
  model::ModelShape shape = gpt2_shape();
  expect_same("gpt2", shape, DType::kF32);
  shape.tie_embeddings = false;
  expect_same("gpt2_untied", shape, DType::kF32);
  shape = llama_shape();
  expect_same("llama", shape, DType::kBF16);
  shape.tie_embeddings = true;
  expect_same("llama_tied", shape, DType::kBF16);
}

// Weights of which every element is a number of its own (bf16 has too few: its bits count up).
class HuggingFaceFiles : public ::testing::Test {
 protected:
  void write_weights(const model::ModelShape& shape) {
    const model::Model model(shape);
    std::vector<checkpoint::SafetensorsSpec> specs;
    for (const model::Unit& unit : model.units()) {
      for (const model::PlacedTensor& tensor : unit.layer->layout().tensors()) {
        specs.push_back({tensor.spec.name, DType::kF32, tensor.spec.shape});
      }
    }
    checkpoint::SafetensorsWriter writer(weights_path_, specs);
    float next = 1;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const auto bytes = checkpoint::tensor_bytes(DType::kF32, specs[i].shape).value();
      std::vector<float> values(bytes / sizeof(float));
      for (float& value : values) value = next++;
      writer.append(i, std::as_bytes(std::span(values)));
    }
    writer.finish();
  }

  static std::vector<float> values_of(const checkpoint::SafetensorsReader& reader,
                                      const std::string& name) {
    const checkpoint::SafetensorsTensor* tensor = reader.find(name);
    if (tensor == nullptr) throw std::runtime_error("no tensor " + name);
    std::vector<float> values(tensor->bytes() / sizeof(float));
    reader.read(*tensor, 0, std::as_writable_bytes(std::span(values)));
    return values;
  }

  // Columns of one row each: [rows, cols] becomes [cols, rows].
  static std::vector<float> transposed(const std::vector<float>& values, std::size_t rows) {
    std::vector<float> result;
    const std::size_t cols = values.size() / rows;
    for (std::size_t col = 0; col < cols; ++col) {
      for (std::size_t row = 0; row < rows; ++row) result.push_back(values[row * cols + col]);
    }
    return result;
  }

  static std::vector<float> slice(const std::vector<float>& values, std::size_t begin,
                                  std::size_t count) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
    return {first, first + static_cast<std::ptrdiff_t>(count)};
  }

  TempDirectory directory_;
  std::string weights_path_ = directory_.file("weights.safetensors");
  std::string exported_ = directory_.file("huggingface");
  std::vector<std::byte> piece_ = std::vector<std::byte>(kMiB);
};

TEST_F(HuggingFaceFiles, TransposesTheMatricesOfGpt2InStripsOfAnySize) {
  const model::ModelShape shape = gpt2_shape();
  write_weights(shape);
  const checkpoint::SafetensorsReader weights(weights_path_);
  // The first is too small for a column of any matrix.
  for (const std::size_t piece_bytes :
       {std::size_t{checkpoint::kLeastExportPieceBytes}, std::size_t{700}, std::size_t{kMiB}}) {
    std::vector<std::byte> piece(piece_bytes);
    checkpoint::export_huggingface(weights, shape, DType::kF32, exported_, piece);
    const checkpoint::SafetensorsReader result(exported_ + "/model.safetensors");
    EXPECT_EQ(result.metadata().at("format"), "pt");
    EXPECT_EQ(values_of(result, "transformer.h.1.attn.c_attn.weight"),
              transposed(values_of(weights, "blocks.1.attention.qkv.weight"), 72));
    EXPECT_EQ(values_of(result, "transformer.h.0.mlp.c_fc.weight"),
              transposed(values_of(weights, "blocks.0.mlp.up.weight"), 40));
    EXPECT_EQ(values_of(result, "transformer.h.0.mlp.c_proj.weight"),
              transposed(values_of(weights, "blocks.0.mlp.down.weight"), 24));
    EXPECT_EQ(values_of(result, "transformer.h.0.attn.c_attn.bias"),
              values_of(weights, "blocks.0.attention.qkv.bias"));
    EXPECT_EQ(values_of(result, "transformer.wte.weight"),
              values_of(weights, "embedding.tokens.weight"));
    EXPECT_EQ(result.find("lm_head.weight"), nullptr);  // tied
  }
}

TEST_F(HuggingFaceFiles, SplitsTheFusedMatricesOfLlama) {
  const model::ModelShape shape = llama_shape();
  write_weights(shape);
  const checkpoint::SafetensorsReader weights(weights_path_);
  checkpoint::export_huggingface(weights, shape, DType::kF32, exported_,
                                 std::span(piece_).first(100));
  const checkpoint::SafetensorsReader result(exported_ + "/model.safetensors");
  const std::string block = "model.layers.1.";
  // 6 query heads, 2 key and 2 value heads of 4 rows.
  const std::vector<float> qkv = values_of(weights, "blocks.1.attention.qkv.weight");
  EXPECT_EQ(values_of(result, block + "self_attn.q_proj.weight"), slice(qkv, 0, 24 * 24));
  EXPECT_EQ(values_of(result, block + "self_attn.k_proj.weight"), slice(qkv, 24 * 24, 8 * 24));
  EXPECT_EQ(values_of(result, block + "self_attn.v_proj.weight"), slice(qkv, 32 * 24, 8 * 24));
  const std::vector<float> up = values_of(weights, "blocks.1.mlp.up.weight");
  EXPECT_EQ(values_of(result, block + "mlp.gate_proj.weight"), slice(up, 0, 40 * 24));
  EXPECT_EQ(values_of(result, block + "mlp.up_proj.weight"), slice(up, 40 * 24, 40 * 24));
  EXPECT_EQ(values_of(result, block + "mlp.down_proj.weight"),
            values_of(weights, "blocks.1.mlp.down.weight"));
  EXPECT_EQ(values_of(result, "lm_head.weight"), values_of(weights, "head.weight"));
}

TEST_F(HuggingFaceFiles, DescribeTheModelAndHaveTheBytesThatAreCounted) {
  for (const model::ModelShape& shape : {gpt2_shape(), llama_shape()}) {
    write_weights(shape);
    checkpoint::export_huggingface(checkpoint::SafetensorsReader(weights_path_), shape, DType::kF32,
                                   exported_, piece_);
    const json config = read_json(exported_ + "/config.json");
    EXPECT_EQ(config.at("model_type"), shape.is_llama() ? "llama" : "gpt2");
    EXPECT_EQ(config.at(shape.is_llama() ? "num_hidden_layers" : "n_layer"), 2);
    EXPECT_EQ(config.at("torch_dtype"), "float32");
    EXPECT_EQ(config.at("tie_word_embeddings"), shape.tie_embeddings);
    std::uint64_t bytes = 0;
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(exported_)) {
      bytes += entry.file_size();
      ++files;
    }
    EXPECT_EQ(files, 2u);  // no temporary one
    EXPECT_EQ(bytes, checkpoint::huggingface_bytes(shape, DType::kF32));
  }
}

TEST_F(HuggingFaceFiles, WeightsOfAnotherModelAreRefused) {
  write_weights(gpt2_shape());
  const checkpoint::SafetensorsReader weights(weights_path_);
  EXPECT_THROW(
      checkpoint::export_huggingface(weights, llama_shape(), DType::kF32, exported_, piece_),
      InputError);
  EXPECT_THROW(
      checkpoint::export_huggingface(weights, gpt2_shape(), DType::kBF16, exported_, piece_),
      InputError);
}

TEST(HuggingFaceExport, NamesTheOptionThatTransformersLacks) {
  model::ModelShape shape = gpt2_shape();
  EXPECT_EQ(checkpoint::huggingface_obstacle(shape), "");
  shape.kv_heads = 1;
  EXPECT_TRUE(holds(checkpoint::huggingface_obstacle(shape), "model.kv_heads is 1"));
  EXPECT_EQ(checkpoint::huggingface_obstacle(llama_shape()), "");
}

}  // namespace
}  // namespace sluice::testing
