#include "base/digest.hpp"

#include <algorithm>
#include <new>

#include "base/error.hpp"

namespace sluice {

namespace {
constexpr std::string_view kHexDigits = "0123456789abcdef";
}

std::string DigestValue::hex() const {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += kHexDigits[byte >> 4];
    text += kHexDigits[byte & 15];
  }
  return text;
}

Digest::Digest() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  reset();
}

void Digest::reset() {
  SLUICE_CHECK(XXH3_128bits_reset(state_.get()) == XXH_OK);
}

void Digest::update(const void* data, std::size_t bytes) {
  if (bytes == 0) return;  // xxHash does not accept a null pointer
  SLUICE_CHECK(XXH3_128bits_update(state_.get(), data, bytes) == XXH_OK);
}

void Digest::update_u64(std::uint64_t value) {
  std::array<std::uint8_t, 8> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
  update(bytes.data(), bytes.size());
}

void Digest::update_text(std::string_view text) {
  update_u64(text.size());
  update(text.data(), text.size());
}

DigestValue Digest::finish() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  DigestValue value;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), value.bytes.begin());
  return value;
}

bool is_digest_hex(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of(kHexDigits) == std::string_view::npos;
}

}  // namespace sluice
