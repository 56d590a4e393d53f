#include "base/error.hpp"

#include <system_error>

#include "base/units.hpp"

namespace sluice {

namespace {

std::string out_of_memory_message(Tier tier, Category category, std::uint64_t requested_bytes,
                                  std::uint64_t available_bytes) {
  return "out of " + std::string(tier_name(tier)) + " memory: " + format_bytes(requested_bytes) +
         " (" + std::to_string(requested_bytes) + " bytes) asked for category " +
         std::string(category_name(category)) + ", " + format_bytes(available_bytes) + " (" +
         std::to_string(available_bytes) + " bytes) available";
}

std::string io_message(std::string_view op, std::string_view path, std::uint64_t offset,
                       std::uint64_t bytes, int error_number) {
  // std::system_category is thread-safe; strerror is not.
  const std::string reason = error_number == 0 ? std::string("fewer bytes moved than asked for")
                                               : std::system_category().message(error_number);
  const std::string of_bytes =
      bytes == 0 ? std::string()
                 : std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " of ";
  return std::string(op) + " of " + of_bytes + "'" + std::string(path) + "' failed: " + reason;
}

}  // namespace

OutOfMemory::OutOfMemory(Tier tier_in, Category category_in, std::uint64_t requested,
                         std::uint64_t available)
    : OutOfMemory(tier_in, category_in, requested, available,
                  out_of_memory_message(tier_in, category_in, requested, available)) {}

OutOfMemory::OutOfMemory(Tier tier_in, Category category_in, std::uint64_t requested,
                         std::uint64_t available, const std::string& message)
    : Error(message),
      tier(tier_in),
      category(category_in),
      requested_bytes(requested),
      available_bytes(available) {}

IoError::IoError(std::string_view op_in, std::string_view path_in, std::uint64_t offset_in,
                 std::uint64_t bytes_in, int error_number_in)
    : Error(io_message(op_in, path_in, offset_in, bytes_in, error_number_in)),
      op(op_in),
      path(path_in),
      offset(offset_in),
      bytes(bytes_in),
      error_number(error_number_in) {}

TimeoutError::TimeoutError(std::string_view waited_for)
    : Error("the deadline passed while waiting for " + std::string(waited_for)) {}

std::string shown(std::string_view text) {
  constexpr std::size_t kMostBytes = 80;
  std::string result(text.substr(0, kMostBytes));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.size() > kMostBytes) result += "...";
  return result;
}

void throw_check_failed(const char* expression, const char* file, int line,
                        const std::string& detail) {
  // Makes the file name relative to the source root if the compiler was given an absolute path.
  std::string_view name(file);
  for (const std::string_view room : {"/base/", "/device/", "/allocator/", "/kernels/",
                                      "/collectives/", "/offload/", "/engine/", "/tools/"}) {
    const auto at = name.rfind(room);
    if (at != std::string_view::npos) {
      name.remove_prefix(at + 1);
      break;
    }
  }
  std::string message = "internal check failed at " + std::string(name) + ":" +
                        std::to_string(line) + ": " + expression;
  if (!detail.empty()) message += " (" + detail + ")";
  throw InternalError(message);
}

}  // namespace sluice
