#include "tools/replay/rmm_log.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "allocator/record/format/csv_reader.hpp"

namespace sluice::replay {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{16} << 30;
constexpr std::size_t kMaxLines = 25'000'000;  // a free is two events
constexpr std::size_t kMaxStreamNames = 65536;

enum Column : std::uint8_t { kTime, kAction, kPointer, kSize, kStream, kCount };
constexpr std::array<std::string_view, kCount> kColumns{"Time", "Action", "Pointer", "Size",
                                                        "Stream"};

// Parses an address as %p or a C++ stream prints it: "0x7f…", "7f…", "0", "(nil)".
std::optional<std::uint64_t> parse_pointer(std::string_view field) {
  if (field == "(nil)" || field == "nullptr") return 0;
  if (field.starts_with("0x") || field.starts_with("0X")) field.remove_prefix(2);
  std::uint64_t value = 0;
  const char* const end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(field.data(), end, value, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

// Parses a time of day, "HH:MM:SS:us" or "HH:MM:SS.us". Returns 0 for anything else.
std::int64_t parse_time_ns(std::string_view field) {
  std::array<std::int64_t, 4> parts{};
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const char* const end = field.data() + field.size();
    const auto [stop, error] = std::from_chars(field.data(), end, parts[p]);
    if (error != std::errc() || parts[p] < 0 || parts[p] > 999'999) return 0;
    field.remove_prefix(static_cast<std::size_t>(stop - field.data()));
    const bool is_last = p + 1 == parts.size();
    if (is_last != field.empty()) return 0;
    if (!is_last) field.remove_prefix(1);
  }
  return ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1'000'000'000 + parts[3] * 1000;
}

class LogReader {
 public:
  explicit LogReader(record::ByteSource& source) : csv_(source) {}

  record::MemorySnapshot run() {
    std::vector<std::string_view> fields;
    if (!csv_.next(fields)) csv_.refuse("must begin with the columns of an RMM log");
    read_header(fields);
    for (std::size_t count = 0; csv_.next(fields); ++count) {
      if (fields.size() != width_) {
        csv_.refuse("must have " + std::to_string(width_) + " fields, not " +
                    std::to_string(fields.size()));
      }
      if (count == kMaxLines) {
        csv_.refuse("there must be at most " + std::to_string(kMaxLines) + " lines");
      }
      read_line(fields);
    }
    return std::move(snapshot_);
  }

 private:
  void read_header(const std::vector<std::string_view>& names) {
    width_ = names.size();
    for (std::size_t c = 0; c < kCount; ++c) {
      const auto found = std::find(names.begin(), names.end(), kColumns[c]);
      if (found == names.end()) {
        csv_.refuse("the first line must name the columns Thread,Time,Action,Pointer,Size,Stream");
      }
      places_[c] = static_cast<std::size_t>(found - names.begin());
    }
  }

  void read_line(const std::vector<std::string_view>& fields) {
    const auto field = [&](Column column) { return fields[places_[column]]; };
    record::MemoryEvent event;
    event.time_ns = parse_time_ns(field(kTime));
    const auto pointer = parse_pointer(field(kPointer));
    if (!pointer) csv_.refuse_field("Pointer", field(kPointer), "a hexadecimal address");
    event.address = *pointer;
    const auto bytes = record::parse_csv_number(field(kSize));
    if (!bytes) csv_.refuse_field("Size", field(kSize), "a whole number of bytes");
    event.bytes = *bytes;
    event.stream = stream_of(field(kStream));

    const std::string_view action = field(kAction);
    if (action == "allocate failure") {
      event.action = record::MemoryAction::kOutOfMemory;
      event.address = 0;  // the log does not tell what was free
      snapshot_.events.push_back(event);
      return;
    }
    const bool is_free = action == "free" || action == "deallocate" || action == "deallocate_async";
    if (!is_free && action != "allocate" && action != "allocate_async") {
      csv_.refuse_field("Action", action, "allocate, free or allocate failure");
    }
    if (event.address == 0) return;  // an allocation of no bytes
    if (event.bytes > record::kMostHeldBytes) {
      csv_.refuse_field("Size", field(kSize), record::most_held_bytes());
    }
    event.action = is_free ? record::MemoryAction::kFreeRequested : record::MemoryAction::kAlloc;
    snapshot_.events.push_back(event);
    if (!is_free) return;
    event.action = record::MemoryAction::kFreeCompleted;
    snapshot_.events.push_back(event);
  }

  std::uint64_t stream_of(std::string_view field) {
    if (const auto value = parse_pointer(field)) return *value;
    // A stream given as a word gets a number that no stream has.
    const auto [entry, is_new] =
        stream_names_.try_emplace(std::string(field), UINT64_MAX - stream_names_.size());
    if (is_new && stream_names_.size() > kMaxStreamNames) {
      csv_.refuse_field("Stream", field, "a hexadecimal number");
    }
    return entry->second;
  }

  record::CsvReader csv_;
  record::MemorySnapshot snapshot_;
  std::size_t width_ = 0;
  std::array<std::size_t, kCount> places_{};
  std::unordered_map<std::string, std::uint64_t> stream_names_;
};

}  // namespace

record::MemorySnapshot read_rmm_log(record::ByteSource& source) {
  return LogReader(source).run();
}

record::MemoryTrace read_rmm_trace(const std::string& path, record::TraceDefects* defects) {
  record::ByteSource source = record::ByteSource::open(path, kMaxFileBytes);
  return record::trace_of(read_rmm_log(source), path, "rmm", defects);
}

}  // namespace sluice::replay
