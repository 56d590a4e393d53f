// Records of a CSV file (RFC 4180), one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/record/format/byte_source.hpp"

namespace sluice::record {

// Fields in quotes may hold commas, line ends and doubled quotes. Lines end with LF or CRLF. A byte
// order mark and empty lines are skipped, and so are spaces around a field that is not quoted.
class CsvReader {
 public:
  // `source` must outlive the reader.
  explicit CsvReader(ByteSource& source);

  // Returns false at the end. `fields` are valid until the next call. InputError if a quote is not
  // closed or a record is larger than 64 KiB.
  bool next(std::vector<std::string_view>& fields);
  // The number of the record's first line, from 1.
  std::uint64_t line() const { return record_line_; }

  // Throws InputError with the name and the line.
  [[noreturn]] void refuse(const std::string& reason) const;
  // Refuses a field with a wrong value, as refuse().
  [[noreturn]] void refuse_field(std::string_view column, std::string_view field,
                                 std::string_view wanted) const;

 private:
  bool read_record();
  void read_quoted();
  void push(int c);

  ByteSource& source_;
  std::string text_;               // the fields of the record, concatenated
  std::vector<std::size_t> ends_;  // the end of each field in text_
  std::vector<bool> quoted_;
  std::uint64_t line_ = 1;
  std::uint64_t record_line_ = 1;
};

// The right form of a size that is above kMostHeldBytes.
std::string most_held_bytes();

// A whole number below 2^64: decimal, or hexadecimal after 0x.
std::optional<std::uint64_t> parse_csv_number(std::string_view field);

}  // namespace sluice::record
