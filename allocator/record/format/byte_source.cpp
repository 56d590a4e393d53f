#include "allocator/record/format/byte_source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace sluice::record {
namespace {

constexpr std::size_t kBufferBytes = 256 << 10;

std::string too_large(const std::string& path, std::uint64_t max_bytes) {
  return "'" + path + "' is above " + std::to_string(max_bytes) + " bytes, the most that is read";
}

}  // namespace

ByteSource::ByteSource(std::string_view memory, std::string name)
    : name_(std::move(name)),
      position_(memory.data()),
      end_(memory.data() + memory.size()),
      taken_(memory.size()),
      total_bytes_(memory.size()) {}

ByteSource::ByteSource(int descriptor, std::string name, std::uint64_t total_bytes,
                       std::uint64_t max_bytes)
    : descriptor_(descriptor),
      name_(std::move(name)),
      buffer_(kBufferBytes),
      total_bytes_(total_bytes),
      max_bytes_(max_bytes) {}

ByteSource::ByteSource(ByteSource&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      name_(std::move(other.name_)),
      buffer_(std::move(other.buffer_)),
      position_(std::exchange(other.position_, nullptr)),
      end_(std::exchange(other.end_, nullptr)),
      taken_(other.taken_),
      total_bytes_(other.total_bytes_),
      max_bytes_(other.max_bytes_) {}

ByteSource::~ByteSource() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

ByteSource ByteSource::open(const std::string& path, std::uint64_t max_bytes) {
  // O_NONBLOCK: a pipe without a writer is refused below instead of waited for.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    throw InputError("'" + path + "' cannot be read: " + std::strerror(errno));
  }
  ByteSource source(descriptor, path, 0, max_bytes);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    throw InputError("'" + path + "' cannot be read: must be a file");
  }
  source.total_bytes_ = static_cast<std::uint64_t>(status.st_size);
  if (source.total_bytes_ > max_bytes) throw InputError(too_large(path, max_bytes));
  return source;
}

bool ByteSource::refill() {
  if (descriptor_ < 0) return false;
  ssize_t got = 0;
  do {
    got = ::pread(descriptor_, buffer_.data(), buffer_.size(), static_cast<off_t>(taken_));
  } while (got < 0 && errno == EINTR);
  if (got < 0) throw InputError("'" + name_ + "' cannot be read: " + std::strerror(errno));
  taken_ += static_cast<std::uint64_t>(got);
  if (taken_ > max_bytes_) throw InputError(too_large(name_, max_bytes_));  // it grew meanwhile
  position_ = buffer_.data();
  end_ = position_ + got;
  return got > 0;
}

bool ByteSource::read(char* out, std::size_t count) {
  while (count > 0) {
    if (position_ == end_ && !refill()) return false;
    const std::size_t step = std::min(count, static_cast<std::size_t>(end_ - position_));
    std::memcpy(out, position_, step);
    position_ += step;
    out += step;
    count -= step;
  }
  return true;
}

bool ByteSource::append(std::string& out, std::uint64_t count) {
  while (count > 0) {
    if (position_ == end_ && !refill()) return false;
    const auto step = std::min(count, static_cast<std::uint64_t>(end_ - position_));
    out.append(position_, step);
    position_ += step;
    count -= step;
  }
  return true;
}

}  // namespace sluice::record
