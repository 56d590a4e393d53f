#include "allocator/record/format/memory_trace_csv.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <ostream>
#include <span>
#include <unordered_map>
#include <vector>

#include "allocator/record/format/csv_reader.hpp"
#include "allocator/record/memory_action_names.hpp"
#include "base/error.hpp"

namespace sluice::record {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{16} << 30;
constexpr std::size_t kMaxEvents = 50'000'000;
constexpr std::size_t kMaxNames = 1'000'000;
constexpr std::uint64_t kMaxPool = std::numeric_limits<std::uint16_t>::max();

enum Column : std::uint8_t { kTime, kAction, kStream, kAddress, kBytes, kCategory, kName, kPool };

// Writes a string so that nothing is lost: in quotes if a reader would split or trim it.
void write_text(std::string_view text, std::ostream& out) {
  const bool is_plain = text.find_first_of(",\"\r\n") == std::string_view::npos &&
                        (text.empty() || (text.front() > ' ' && text.back() > ' '));
  if (is_plain) {
    out << text;
    return;
  }
  out << '"';
  for (const char c : text) {
    if (c == '"') out << '"';
    out << c;
  }
  out << '"';
}

std::optional<Category> parse_category(std::string_view word) {
  for (std::size_t i = 0; i < kCategoryCount; ++i) {
    if (category_name(static_cast<Category>(i)) == word) return static_cast<Category>(i);
  }
  return std::nullopt;
}

// Whether the event is of a block or segment that was held. A refused request may have any size.
bool names_memory(MemoryAction action) {
  return action <= MemoryAction::kSegmentUnmap;
}

std::string one_of(std::span<const std::string_view> words) {
  std::string result = "one of";
  for (const std::string_view word : words) result += " " + std::string(word);
  return result;
}

class EventReader {
 public:
  explicit EventReader(ByteSource& source) : csv_(source) {}

  MemorySnapshot run() {
    std::vector<std::string_view> fields;
    if (!csv_.next(fields) || !is_header(fields)) {
      csv_.refuse("the first line must be " + std::string(kMemoryTraceCsvHeader));
    }
    const std::size_t field_count = fields.size();
    while (csv_.next(fields)) {
      if (fields.size() != field_count) {
        csv_.refuse("must have " + std::to_string(field_count) + " fields, not " +
                    std::to_string(fields.size()));
      }
      if (snapshot_.events.size() == kMaxEvents) {
        csv_.refuse("there must be at most " + std::to_string(kMaxEvents) + " events");
      }
      snapshot_.events.push_back(read_event(fields));
    }
    return std::move(snapshot_);
  }

 private:
  static bool is_header(const std::vector<std::string_view>& fields) {
    std::string joined;
    if (fields.size() < kPool) return false;
    for (const std::string_view field : fields) {
      joined += joined.empty() ? "" : ",";
      joined += field;
    }
    return joined == kMemoryTraceCsvHeader || joined + ",pool" == kMemoryTraceCsvHeader;
  }

  std::uint64_t number(std::string_view column, std::string_view field) const {
    const auto value = parse_csv_number(field);
    if (!value) csv_.refuse_field(column, field, "a whole number below 2^64");
    return *value;
  }

  MemoryEvent read_event(const std::vector<std::string_view>& fields) {
    MemoryEvent event;
    const std::string_view time = fields[kTime];
    const auto parsed = std::from_chars(time.data(), time.data() + time.size(), event.time_ns);
    if (parsed.ec != std::errc() || parsed.ptr != time.data() + time.size()) {
      csv_.refuse_field("time_ns", time, "a whole number of nanoseconds");
    }
    const auto action = parse_memory_action(fields[kAction]);
    if (!action) csv_.refuse_field("action", fields[kAction], one_of(kMemoryActionNames));
    event.action = *action;
    event.stream = number("stream", fields[kStream]);
    event.address = number("address", fields[kAddress]);
    event.bytes = number("bytes", fields[kBytes]);
    if (names_memory(event.action) && event.bytes > kMostHeldBytes) {
      csv_.refuse_field("bytes", fields[kBytes], most_held_bytes());
    }
    const auto category = parse_category(fields[kCategory]);
    if (!category) {
      csv_.refuse_field("category", fields[kCategory],
                        "one of weight gradient optimizer activation workspace communication "
                        "external");
    }
    event.category = *category;
    event.name = intern(fields[kName]);
    if (fields.size() > kPool) {
      const std::uint64_t pool = number("pool", fields[kPool]);
      if (pool > kMaxPool) csv_.refuse_field("pool", fields[kPool], "below 65536");
      event.pool = static_cast<std::uint16_t>(pool);
    }
    return event;
  }

  std::uint32_t intern(std::string_view name) {
    if (name.empty()) return 0;
    const auto next = static_cast<std::uint32_t>(snapshot_.names.size());
    const auto [entry, is_new] = names_.try_emplace(std::string(name), next);
    if (is_new) {
      if (next > kMaxNames) {
        csv_.refuse("there must be at most " + std::to_string(kMaxNames) + " different names");
      }
      snapshot_.names.emplace_back(name);
    }
    return entry->second;
  }

  CsvReader csv_;
  MemorySnapshot snapshot_;
  std::unordered_map<std::string, std::uint32_t> names_;
};

}  // namespace

void write_memory_trace_csv(const MemorySnapshot& snapshot, std::ostream& out) {
  out << kMemoryTraceCsvHeader << '\n';
  for (const MemoryEvent& event : snapshot.events) {
    SLUICE_CHECK(event.name < snapshot.names.size());
    out << event.time_ns << ',' << memory_action_name(event.action) << ',' << event.stream << ",0x"
        << std::hex << event.address << std::dec << ',' << event.bytes << ','
        << category_name(event.category) << ',';
    write_text(snapshot.names[event.name], out);
    out << ',' << event.pool << '\n';
  }
}

MemorySnapshot read_memory_trace_csv(ByteSource& source) {
  return EventReader(source).run();
}

MemorySnapshot read_memory_trace_csv(const std::string& path) {
  ByteSource source = ByteSource::open(path, kMaxFileBytes);
  return read_memory_trace_csv(source);
}

}  // namespace sluice::record
