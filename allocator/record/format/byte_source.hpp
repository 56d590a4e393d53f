// Reads the bytes of a file or of memory once, from front to back, through a buffer of fixed size.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::record {

class ByteSource {
 public:
  // `memory` must outlive the source. `name` is for messages.
  ByteSource(std::string_view memory, std::string name);
  // InputError if the file cannot be read or holds more than `max_bytes`.
  static ByteSource open(const std::string& path, std::uint64_t max_bytes);
  ByteSource(ByteSource&& other) noexcept;
  ByteSource& operator=(ByteSource&&) = delete;
  ~ByteSource();

  // The next byte, or -1 at the end.
  int next() {
    if (position_ == end_ && !refill()) return -1;
    return static_cast<unsigned char>(*position_++);
  }
  int peek() {
    if (position_ == end_ && !refill()) return -1;
    return static_cast<unsigned char>(*position_);
  }
  // Returns false if fewer than `count` bytes are left. Some of them are taken then.
  bool read(char* out, std::size_t count);
  // Appends up to `count` bytes to `out`. It does so in steps, so that a false length in a file
  // costs no memory. Returns false if fewer bytes are left.
  bool append(std::string& out, std::uint64_t count);
  // The offset of the next byte.
  std::uint64_t offset() const { return taken_ - static_cast<std::uint64_t>(end_ - position_); }
  // The size of the whole when it was opened.
  std::uint64_t total_bytes() const { return total_bytes_; }
  const std::string& name() const { return name_; }

 private:
  ByteSource(int descriptor, std::string name, std::uint64_t total_bytes, std::uint64_t max_bytes);
  bool refill();

  int descriptor_ = -1;
  std::string name_;
  std::vector<char> buffer_;
  const char* position_ = nullptr;
  const char* end_ = nullptr;
  std::uint64_t taken_ = 0;  // bytes up to end_
  std::uint64_t total_bytes_ = 0;
  std::uint64_t max_bytes_ = 0;
};

}  // namespace sluice::record
