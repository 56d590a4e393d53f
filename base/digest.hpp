// Streaming XXH3-128 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). It detects accidental
// changes, not attacks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/xxh3.hpp"

namespace sluice {

// 16 bytes in canonical (big-endian) order: the same on every machine.
struct DigestValue {
  std::array<std::uint8_t, 16> bytes{};
  std::string hex() const;  // 32 lower-case digits
};

class Digest {
 public:
  Digest();
  void reset();
  void update(const void* data, std::size_t bytes);
  // Adds the value in little-endian order, so that a digest does not depend on the machine.
  void update_u64(std::uint64_t value);
  // Adds the length first, so that ("ab", "c") and ("a", "bc") differ.
  void update_text(std::string_view text);
  DigestValue finish() const;

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;  // made by xxHash: it must be 64-byte aligned
};

// Whether `text` has the form of DigestValue::hex().
bool is_digest_hex(std::string_view text);

}  // namespace sluice
