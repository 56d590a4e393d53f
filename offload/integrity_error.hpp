// The error for a block that storage returned with other bytes than were last written, and for a
// file whose bytes are not those of its digest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace sluice::offload {

class IntegrityError : public Error {
 public:
  // block: a name for people, such as "block 7 of moment1 of unit 3". path and offset_bytes: the
  // file that holds the block's first byte, and its offset there.
  IntegrityError(std::string_view block_in, std::string_view path_in, std::uint64_t offset_bytes_in,
                 std::uint64_t bytes_in)
      : Error(std::string(block_in) + ", " + std::to_string(bytes_in) + " bytes at offset " +
              std::to_string(offset_bytes_in) + " of '" + std::string(path_in) +
              "', is corrupt: two reads returned other bytes than were last written there; "
              "check that disk and the memory of this machine"),
        block(block_in),
        path(path_in),
        offset_bytes(offset_bytes_in),
        bytes(bytes_in) {}
  explicit IntegrityError(const std::string& path_in)
      : Error("'" + path_in +
              "' is corrupt: its bytes are not those of its digest; use an older file, and check "
              "that disk"),
        path(path_in) {}
  std::string_view code() const noexcept override { return "integrity"; }

  std::string block;
  std::string path;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
};

}  // namespace sluice::offload
