#include "engine/checkpoint/weights_hash.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::checkpoint {

namespace {
constexpr std::uint64_t kBlockBytes = kMiB;
}

void WeightsHasher::begin_tensor(std::string_view name, DType dtype,
                                 std::span<const std::int64_t> shape) {
  SLUICE_CHECK_MSG(!in_tensor_, "tensor '" + name_ + "' has no end");
  in_tensor_ = true;
  name_ = name;
  outer_.update_text(name);
  outer_.update_text(dtype_name(dtype));
  outer_.update_u64(shape.size());
  remaining_bytes_ = dtype_bytes(dtype);
  for (const std::int64_t dimension : shape) {
    SLUICE_CHECK(dimension >= 0);
    outer_.update_u64(static_cast<std::uint64_t>(dimension));
    remaining_bytes_ *= static_cast<std::uint64_t>(dimension);
  }
}

void WeightsHasher::update(const void* data, std::uint64_t bytes) {
  SLUICE_CHECK(in_tensor_);
  SLUICE_CHECK_MSG(bytes <= remaining_bytes_, "tensor '" + name_ + "' got more bytes than it has");
  remaining_bytes_ -= bytes;
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const std::uint64_t piece = std::min(bytes, kBlockBytes - block_bytes_);
    block_.update(next, piece);
    next += piece;
    bytes -= piece;
    block_bytes_ += piece;
    if (block_bytes_ == kBlockBytes) close_block();
  }
}

void WeightsHasher::close_block() {
  const DigestValue value = block_.finish();
  outer_.update(value.bytes.data(), value.bytes.size());
  block_.reset();
  block_bytes_ = 0;
}

void WeightsHasher::end_tensor() {
  SLUICE_CHECK(in_tensor_);
  SLUICE_CHECK_MSG(remaining_bytes_ == 0,
                   "tensor '" + name_ + "' lacks " + std::to_string(remaining_bytes_) + " bytes");
  if (block_bytes_ > 0) close_block();
  in_tensor_ = false;
}

std::string WeightsHasher::finish() {
  SLUICE_CHECK_MSG(!in_tensor_, "tensor '" + name_ + "' has no end");
  return outer_.finish().hex();
}

}  // namespace sluice::checkpoint
