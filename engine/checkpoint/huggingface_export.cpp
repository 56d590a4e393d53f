#include "engine/checkpoint/huggingface_export.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"
#include "engine/model/constants.hpp"

namespace sluice::checkpoint {
namespace {

// transformers refuses a file if its metadata does not name the framework that wrote it.
std::map<std::string, std::string> file_metadata() {
  return {{"format", "pt"}};
}

// Collects the tensors of one model, in the order of the file.
class TensorList {
 public:
  explicit TensorList(DType weight) : weight_(weight) {}

  void add(const std::string& name, std::vector<std::int64_t> shape, const std::string& source) {
    tensors_.push_back({{name, weight_, std::move(shape)}, source});
  }
  // Rows [first_row, first_row + rows) of the source, as a matrix of its own.
  void add_rows(const std::string& name, std::int64_t first_row, std::int64_t rows,
                std::int64_t cols, const std::string& source) {
    tensors_.push_back({{name, weight_, {rows, cols}}, source, first_row});
  }
  // The source [rows, cols] as [cols, rows].
  void add_transposed(const std::string& name, std::int64_t rows, std::int64_t cols,
                      const std::string& source) {
    tensors_.push_back({{name, weight_, {cols, rows}}, source, 0, true});
  }
  std::vector<HuggingFaceTensor> take() { return std::move(tensors_); }

 private:
  DType weight_;
  std::vector<HuggingFaceTensor> tensors_;
};

void add_gpt2_block(TensorList& list, const model::ModelShape& shape, std::int64_t index) {
  const std::string ours = "blocks." + std::to_string(index) + ".";
  const std::string theirs = "transformer.h." + std::to_string(index) + ".";
  const std::int64_t hidden = shape.hidden;
  const auto norm = [&](const std::string& name, const std::string& source) {
    list.add(theirs + name + ".weight", {hidden}, ours + source + ".weight");
    list.add(theirs + name + ".bias", {hidden}, ours + source + ".bias");
  };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in,
                          const std::string& source) {
    list.add_transposed(theirs + name + ".weight", out, in, ours + source + ".weight");
    list.add(theirs + name + ".bias", {out}, ours + source + ".bias");
  };
  norm("ln_1", "norm1");
  linear("attn.c_attn", shape.qkv_cols(), hidden, "attention.qkv");
  linear("attn.c_proj", hidden, hidden, "attention.output");
  norm("ln_2", "norm2");
  linear("mlp.c_fc", shape.ffn, hidden, "mlp.up");
  linear("mlp.c_proj", hidden, shape.ffn, "mlp.down");
}

void add_llama_block(TensorList& list, const model::ModelShape& shape, std::int64_t index) {
  const std::string ours = "blocks." + std::to_string(index) + ".";
  const std::string theirs = "model.layers." + std::to_string(index) + ".";
  const std::int64_t hidden = shape.hidden;
  const std::int64_t query_rows = shape.heads * shape.head_dim();
  const std::int64_t key_rows = shape.kv_heads * shape.head_dim();
  const std::string qkv = ours + "attention.qkv.weight";
  list.add_rows(theirs + "self_attn.q_proj.weight", 0, query_rows, hidden, qkv);
  list.add_rows(theirs + "self_attn.k_proj.weight", query_rows, key_rows, hidden, qkv);
  list.add_rows(theirs + "self_attn.v_proj.weight", query_rows + key_rows, key_rows, hidden, qkv);
  list.add(theirs + "self_attn.o_proj.weight", {hidden, hidden}, ours + "attention.output.weight");
  const std::string up = ours + "mlp.up.weight";
  list.add_rows(theirs + "mlp.gate_proj.weight", 0, shape.ffn, hidden, up);
  list.add_rows(theirs + "mlp.up_proj.weight", shape.ffn, shape.ffn, hidden, up);
  list.add(theirs + "mlp.down_proj.weight", {hidden, shape.ffn}, ours + "mlp.down.weight");
  list.add(theirs + "input_layernorm.weight", {hidden}, ours + "norm1.weight");
  list.add(theirs + "post_attention_layernorm.weight", {hidden}, ours + "norm2.weight");
}

std::string torch_dtype(DType weight) {
  if (weight == DType::kBF16) return "bfloat16";
  return weight == DType::kF16 ? "float16" : "float32";
}

// The place of a tensor's rows in the weights. A matrix has rows of `cols` elements; a vector has
// one element a row.
struct Rows {
  const SafetensorsTensor* source = nullptr;
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
};

Rows rows_of(const SafetensorsReader& weights, const HuggingFaceTensor& tensor) {
  Rows rows;
  rows.source = weights.find(tensor.source);
  const std::uint64_t element = dtype_bytes(tensor.spec.dtype);
  const auto& shape = tensor.spec.shape;
  rows.rows = static_cast<std::uint64_t>(tensor.transposed ? shape[1] : shape[0]);
  const auto cols = tensor.transposed ? shape[0] : shape.size() > 1 ? shape[1] : 1;
  rows.row_bytes = static_cast<std::uint64_t>(cols) * element;
  const std::uint64_t end =
      (static_cast<std::uint64_t>(tensor.first_row) + rows.rows) * rows.row_bytes;
  if (rows.source == nullptr || rows.source->dtype != tensor.spec.dtype ||
      rows.source->bytes() < end) {
    throw InputError(weights.path() + ": is of another model: it has no tensor '" + tensor.source +
                     "' that '" + tensor.spec.name + "' can be made of");
  }
  return rows;
}

void copy_rows(const SafetensorsReader& weights, const HuggingFaceTensor& tensor, std::size_t at,
               std::span<std::byte> piece, SafetensorsWriter& writer) {
  const Rows rows = rows_of(weights, tensor);
  const std::uint64_t first = static_cast<std::uint64_t>(tensor.first_row) * rows.row_bytes;
  const std::uint64_t bytes = rows.rows * rows.row_bytes;
  for (std::uint64_t done = 0; done < bytes; done += piece.size()) {
    const auto part = piece.first(std::min<std::uint64_t>(piece.size(), bytes - done));
    weights.read(*rows.source, first + done, part);
    writer.append(at, part);
  }
}

// Strip by strip: columns [first, first + width) of the source are read row by row and become
// `width` rows of the result. A strip of all columns reads whole rows. The piece holds a strip and
// one of its rows. If it is too small for a column, single columns are read in parts.
void transpose_rows(const SafetensorsReader& weights, const HuggingFaceTensor& tensor,
                    std::size_t at, std::span<std::byte> piece, SafetensorsWriter& writer) {
  const Rows rows = rows_of(weights, tensor);
  const std::uint64_t element = dtype_bytes(tensor.spec.dtype);
  const std::uint64_t cols = rows.row_bytes / element;
  const std::uint64_t elems = piece.size() / element;
  const std::uint64_t widest = std::clamp<std::uint64_t>(elems / (rows.rows + 1), 1, cols);
  const std::uint64_t tallest = std::min(rows.rows, elems / widest - 1);
  for (std::uint64_t first = 0; first < cols; first += widest) {
    const std::uint64_t width = std::min(widest, cols - first);
    const std::span<std::byte> segment = piece.last(width * element);
    for (std::uint64_t top = 0; top < rows.rows; top += tallest) {
      const std::uint64_t height = std::min(tallest, rows.rows - top);
      for (std::uint64_t row = 0; row < height; ++row) {
        weights.read(*rows.source, (top + row) * rows.row_bytes + first * element, segment);
        for (std::uint64_t col = 0; col < width; ++col) {
          std::memcpy(piece.data() + (col * height + row) * element, segment.data() + col * element,
                      element);
        }
      }
      writer.append(at, piece.first(width * height * element));
    }
  }
}

void write_text(const std::string& path, const std::string& text) {
  PosixFile file = PosixFile::create(path + ".tmp");
  file.write_all(0, std::as_bytes(std::span(text)));
  file.sync();
  rename_durably(path + ".tmp", path);
}

}  // namespace

std::string huggingface_obstacle(const model::ModelShape& shape) {
  if (shape.is_llama() || shape.kv_heads == shape.heads) return "";
  return "model.kv_heads is " + std::to_string(shape.kv_heads) + " and model.heads " +
         std::to_string(shape.heads) + ", and transformers' GPT-2 has as many of both";
}

std::vector<HuggingFaceTensor> huggingface_tensors(const model::ModelShape& shape, DType weight) {
  SLUICE_CHECK(huggingface_obstacle(shape).empty());
  TensorList list(weight);
  const bool llama = shape.is_llama();
  list.add(llama ? "model.embed_tokens.weight" : "transformer.wte.weight",
           {shape.vocab, shape.hidden}, "embedding.tokens.weight");
  if (!llama) {
    list.add("transformer.wpe.weight", {shape.max_seq, shape.hidden}, "embedding.positions.weight");
  }
  for (std::int64_t index = 0; index < shape.layers; ++index) {
    if (llama) {
      add_llama_block(list, shape, index);
    } else {
      add_gpt2_block(list, shape, index);
    }
  }
  list.add(llama ? "model.norm.weight" : "transformer.ln_f.weight", {shape.hidden},
           "head.norm.weight");
  if (!llama) list.add("transformer.ln_f.bias", {shape.hidden}, "head.norm.bias");
  if (!shape.tie_embeddings) {
    list.add("lm_head.weight", {shape.vocab, shape.hidden}, "head.weight");
  }
  return list.take();
}

std::string huggingface_config(const model::ModelShape& shape, DType weight) {
  SLUICE_CHECK(huggingface_obstacle(shape).empty());
  // A double that prints as "1e-05": the float of the kernels would print nine digits.
  constexpr double kEpsilon = 1e-5;
  static_assert(static_cast<float>(kEpsilon) == model::kNormEpsilon);
  nlohmann::ordered_json config;
  if (shape.is_llama()) {
    config = {{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"vocab_size", shape.vocab},
              {"hidden_size", shape.hidden},
              {"intermediate_size", shape.ffn},
              {"num_hidden_layers", shape.layers},
              {"num_attention_heads", shape.heads},
              {"num_key_value_heads", shape.kv_heads},
              {"head_dim", shape.head_dim()},
              {"max_position_embeddings", shape.max_seq},
              {"hidden_act", "silu"},
              {"rms_norm_eps", kEpsilon},
              {"rope_theta", model::kRopeBase},
              {"attention_bias", false},
              {"mlp_bias", false},
              {"attention_dropout", 0.0}};
  } else {
    config = {{"architectures", {"GPT2LMHeadModel"}},
              {"model_type", "gpt2"},
              {"vocab_size", shape.vocab},
              {"n_positions", shape.max_seq},
              {"n_embd", shape.hidden},
              {"n_layer", shape.layers},
              {"n_head", shape.heads},
              {"n_inner", shape.ffn},
              {"activation_function", "gelu_new"},  // GELU by tanh
              {"layer_norm_epsilon", kEpsilon},
              {"resid_pdrop", 0.0},
              {"embd_pdrop", 0.0},
              {"attn_pdrop", 0.0}};
  }
  config["tie_word_embeddings"] = shape.tie_embeddings;
  config["bos_token_id"] = nullptr;  // the vocabulary has no special tokens
  config["eos_token_id"] = nullptr;
  config["torch_dtype"] = torch_dtype(weight);
  return json_text(config, 2) + "\n";
}

std::uint64_t huggingface_bytes(const model::ModelShape& shape, DType weight) {
  std::vector<SafetensorsSpec> specs;
  for (const HuggingFaceTensor& tensor : huggingface_tensors(shape, weight)) {
    specs.push_back(tensor.spec);
  }
  return safetensors_bytes(specs, file_metadata()) + huggingface_config(shape, weight).size();
}

void export_huggingface(const SafetensorsReader& weights, const model::ModelShape& shape,
                        DType weight, const std::string& directory, std::span<std::byte> piece) {
  SLUICE_CHECK(piece.size() >= kLeastExportPieceBytes);
  const std::vector<HuggingFaceTensor> tensors = huggingface_tensors(shape, weight);
  std::vector<SafetensorsSpec> specs;
  for (const HuggingFaceTensor& tensor : tensors) specs.push_back(tensor.spec);
  make_directories(directory);
  if (std::filesystem::is_symlink(directory)) throw IoError("open", directory, 0, 0, ELOOP);
  const std::string path = directory + "/model.safetensors";
  {
    SafetensorsWriter writer(path + ".tmp", specs, file_metadata());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto write = tensors[i].transposed ? transpose_rows : copy_rows;
      write(weights, tensors[i], i, piece, writer);
    }
    writer.finish();
  }
  rename_durably(path + ".tmp", path);
  write_text(directory + "/config.json", huggingface_config(shape, weight));
}

}  // namespace sluice::checkpoint
