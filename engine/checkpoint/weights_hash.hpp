// `weights_hash`: one XXH3-128 over a model's weights, streamed tensor by tensor.
//
// Definition. The outer digest takes, for each tensor in canonical name order: its name and its
// dtype as safetensors spells it (each: u64 length, bytes), its rank and each dimension (u64), then
// the XXH3-128 (16 bytes, canonical) of every block of 1 MiB of its bytes, the last one shorter.
// All integers little-endian. Blocks let shards and chunks be hashed apart and joined.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/dtype.hpp"

namespace sluice::checkpoint {

// Tensors come in the caller's order, which must be the canonical one; not thread-safe.
// Errors: InternalError where calls are out of order or a tensor's bytes do not add up.
class WeightsHasher {
 public:
  // shape: non-negative dimensions; empty for a scalar.
  void begin_tensor(std::string_view name, DType dtype, std::span<const std::int64_t> shape);
  // The next bytes of the tensor, in pieces of any size.
  void update(const void* data, std::uint64_t bytes);
  void end_tensor();
  // 32 hex digits.
  std::string finish();

 private:
  void close_block();

  Digest outer_;
  Digest block_;
  std::string name_;
  std::uint64_t remaining_bytes_ = 0;  // of the tensor
  std::uint64_t block_bytes_ = 0;      // taken into the open block
  bool in_tensor_ = false;
};

}  // namespace sluice::checkpoint
