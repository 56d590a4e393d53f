// Final weights as a directory that Hugging Face transformers loads with from_pretrained():
// config.json and model.safetensors, with its names, shapes and layouts. It has no tokenizer and no
// generation settings.
//
// The source is the run's own weights.safetensors, so the export moves no state of the run. Two
// layouts differ:
//   - a fused matrix of ours is several of theirs: attention.qkv holds the rows of q, k and v, one
//     after the other, mlp.up of Llama those of gate and up. Their rows are ours, in our order:
//     rotary positions pair the same elements (i and i + head_dim/2);
//   - GPT-2's Conv1D stores a matrix as [in, out], ours is [out, in].
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "engine/checkpoint/safetensors.hpp"
#include "engine/model/model.hpp"

namespace sluice::checkpoint {

// A tensor of the export, and the rows of ours that it is made of.
struct HuggingFaceTensor {
  SafetensorsSpec spec;
  std::string source;
  std::int64_t first_row = 0;  // of the source
  bool transposed = false;
};

// Why transformers has no model of exactly this shape, as a clause that names the key; empty: it
// has one. Such a run has no export.
std::string huggingface_obstacle(const model::ModelShape& shape);

// The tensors in the file's order. A tied head has no tensor: transformers takes the embedding.
// Precondition: no obstacle.
std::vector<HuggingFaceTensor> huggingface_tensors(const model::ModelShape& shape, DType weight);

// The text of config.json. Precondition: no obstacle.
std::string huggingface_config(const model::ModelShape& shape, DType weight);

// The bytes of the directory's files.
std::uint64_t huggingface_bytes(const model::ModelShape& shape, DType weight);

// Bytes that an export passes through at once if so many are spare. More are not faster.
constexpr std::uint64_t export_piece_bytes(std::uint64_t spare_bytes) {
  return std::min<std::uint64_t>(spare_bytes, 16 * kMiB);
}

// Writes model.safetensors and config.json into `directory`, and creates it if it is missing. Each
// file is replaced as a whole and is on disk when this returns. Tensors pass through `piece`, at
// least kLeastExportPieceBytes. Precondition: huggingface_obstacle(shape) is empty. Throws
// InputError if `weights` does not match the model, and IoError.
inline constexpr std::uint64_t kLeastExportPieceBytes = 16;  // two elements of any dtype
void export_huggingface(const SafetensorsReader& weights, const model::ModelShape& shape,
                        DType weight, const std::string& directory, std::span<std::byte> piece);

}  // namespace sluice::checkpoint
