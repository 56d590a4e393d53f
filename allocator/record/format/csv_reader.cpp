#include "allocator/record/format/csv_reader.hpp"

#include <charconv>

#include "allocator/record/memory_trace.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::record {
namespace {

constexpr std::size_t kMaxRecordBytes = 64 << 10;

std::string_view trim(std::string_view field) {
  while (!field.empty() && (field.front() == ' ' || field.front() == '\t')) field.remove_prefix(1);
  while (!field.empty() && (field.back() == ' ' || field.back() == '\t')) field.remove_suffix(1);
  return field;
}

std::string printable(std::string_view text) {
  std::string result(text.substr(0, 40));
  for (char& c : result) {
    if (c < ' ' || c > '~') c = '?';
  }
  return result;
}

}  // namespace

CsvReader::CsvReader(ByteSource& source) : source_(source) {
  if (source_.peek() != 0xef) return;
  for (const int expected : {0xef, 0xbb, 0xbf}) {
    if (source_.next() != expected) refuse("must be UTF-8");
  }
}

void CsvReader::refuse(const std::string& reason) const {
  throw InputError("'" + source_.name() + "' line " + std::to_string(record_line_) + ": " + reason);
}

void CsvReader::refuse_field(std::string_view column, std::string_view field,
                             std::string_view wanted) const {
  refuse(std::string(column) + " '" + printable(field) + "' must be " + std::string(wanted));
}

void CsvReader::push(int c) {
  if (text_.size() == kMaxRecordBytes) refuse("is above 64 KiB: must be shorter");
  text_.push_back(static_cast<char>(c));
}

void CsvReader::read_quoted() {
  for (;;) {
    const int c = source_.next();
    if (c < 0) refuse("a quote must be closed");
    if (c == '\n') ++line_;
    if (c == '"') {
      if (source_.peek() != '"') return;
      static_cast<void>(source_.next());
    }
    push(c);
  }
}

bool CsvReader::read_record() {
  text_.clear();
  ends_.clear();
  quoted_.clear();
  record_line_ = line_;
  if (source_.peek() < 0) return false;
  bool is_quoted = false;
  for (std::size_t begin = 0;;) {
    const int c = source_.next();
    if (c == ',' || c == '\n' || c < 0) {
      if (c != ',' && !is_quoted && text_.size() > begin && text_.back() == '\r') text_.pop_back();
      ends_.push_back(text_.size());
      quoted_.push_back(is_quoted);
      if (ends_.size() > kMaxRecordBytes) refuse("has too many fields");
      if (c == '\n') ++line_;
      if (c != ',') return true;
      begin = text_.size();
      is_quoted = false;
    } else if (c == '"' && text_.size() == begin && !is_quoted) {
      is_quoted = true;
      read_quoted();
    } else if (is_quoted) {
      if (c != '\r' && c != ' ') refuse("a comma must follow a field in quotes");
    } else {
      push(c);
    }
  }
}

bool CsvReader::next(std::vector<std::string_view>& fields) {
  while (read_record()) {
    fields.clear();
    std::size_t begin = 0;
    for (std::size_t f = 0; f < ends_.size(); ++f) {
      const std::string_view field = std::string_view(text_).substr(begin, ends_[f] - begin);
      fields.push_back(quoted_[f] ? field : trim(field));
      begin = ends_[f];
    }
    if (fields.size() > 1 || !fields.front().empty() || quoted_.front()) return true;
  }
  return false;
}

std::string most_held_bytes() {
  return "at most " + std::to_string(kMostHeldBytes) + " (" + format_bytes(kMostHeldBytes) +
         "): no address space is larger";
}

std::optional<std::uint64_t> parse_csv_number(std::string_view field) {
  const bool is_hex = field.starts_with("0x") || field.starts_with("0X");
  if (is_hex) field.remove_prefix(2);
  std::uint64_t value = 0;
  const char* const end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(field.data(), end, value, is_hex ? 16 : 10);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace sluice::record
