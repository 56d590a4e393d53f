// Lines are wrapped at the last moment, where they are written, so no command counts columns. The
// width is asked for each write: a person may resize the window during a run of days.
#include "tools/sluice/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <utility>

namespace sluice::cli {
namespace {

constexpr std::size_t kDefaultColumns = 80;
constexpr std::size_t kLeastColumns = 20;
constexpr std::size_t kPlainIndent = 2;

// UTF-8 continues a character with bytes 10xxxxxx.
bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// The byte at which column `columns` of the text begins; its size if it is shorter.
std::size_t byte_at_column(std::string_view text, std::size_t columns) {
  std::size_t at = 0;
  for (std::size_t column = 0; at < text.size(); ++at) {
    if (!continues_character(text[at]) && column++ == columns) break;
  }
  return at;
}

// Columns before a continued line. Indents leave two fifths of the width to the text.
std::size_t hanging_indent(std::string_view line, std::size_t columns) {
  const std::size_t most = columns * 3 / 5;
  std::size_t indent = line.find_first_not_of(' ');
  if (indent == std::string_view::npos || indent > most) return 0;
  const bool has_label = indent == 0;
  if (has_label) indent = kPlainIndent;
  for (std::size_t at = line.find_first_not_of(' '); at + 2 < line.size(); ++at) {
    if (line[at] == ' ' || line[at + 1] != ' ' || line[at + 2] != ' ') continue;
    const std::size_t text = line.find_first_not_of(' ', at + 1);
    if (text == std::string_view::npos) break;
    const std::size_t column = text_columns(line.substr(0, text));
    if (column > most) break;
    indent = column;
  }
  return indent;
}

void append_wrapped(std::string& wrapped, std::string_view line, std::size_t columns) {
  if (text_columns(line) > columns) line = line.substr(0, line.find_last_not_of(' ') + 1);
  const std::string indent(hanging_indent(line, columns), ' ');
  std::size_t room = columns;
  std::size_t least = indent.size();  // a break before it would leave a line of blanks
  while (text_columns(line) > room) {
    const std::size_t limit = byte_at_column(line, room);
    std::size_t end = line.rfind(' ', limit);
    const std::size_t first = line.find_first_not_of(' ');
    if (end == std::string_view::npos || end <= std::max(first, least)) end = limit;
    const std::string_view part = line.substr(0, end);
    wrapped += part.substr(0, part.find_last_not_of(' ') + 1);
    wrapped += '\n';
    wrapped += indent;
    line.remove_prefix(end);
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(' ')));
    room = columns - indent.size();
    least = 0;
  }
  wrapped += line;
}

// 0 if the environment's variable is no number.
std::size_t columns_in(const char* name) {
  const char* const variable = std::getenv(name);
  if (variable == nullptr) return 0;
  std::size_t columns = 0;
  const std::string_view text(variable);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  return error != std::errc() || stop != text.data() + text.size() ? 0 : columns;
}

}  // namespace

std::size_t terminal_columns(int descriptor) {
  if (isatty(descriptor) == 0) return 0;
  std::size_t columns = columns_in("COLUMNS");
  winsize size{};
  if (columns == 0 && ::ioctl(descriptor, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  return columns == 0 ? kDefaultColumns : std::max(columns, kLeastColumns);
}

std::size_t line_columns(int descriptor) {
  const std::size_t columns = terminal_columns(descriptor);
  return columns > 0 ? columns : columns_in(kRelayedColumns);
}

std::size_t text_columns(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return !continues_character(byte); }));
}

std::string wrap_text(std::string_view text, std::size_t columns) {
  if (columns == 0) return std::string(text);
  std::string wrapped;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    append_wrapped(wrapped, text.substr(0, end), columns);
    if (end == std::string_view::npos) break;
    wrapped += '\n';
    text.remove_prefix(end + 1);
  }
  return wrapped;
}

std::string fit_fields(std::vector<StatusField> fields, std::size_t columns) {
  for (;;) {
    std::string line;
    for (const StatusField& field : fields) line += (line.empty() ? "" : "  ") + field.text;
    if (columns == 0 || text_columns(line) < columns || fields.size() <= 1) return line;
    fields.erase(std::min_element(fields.begin(), fields.end(), [](const auto& a, const auto& b) {
      return a.importance < b.importance;
    }));
  }
}

WrappedStdout::WrappedStdout() : replaced_(std::cout.rdbuf(this)) {}

WrappedStdout::~WrappedStdout() {
  sync();
  if (!pending_.empty()) replaced_->sputn(pending_.data(), std::ssize(pending_));
  replaced_->pubsync();
  std::cout.rdbuf(replaced_);
}

WrappedStdout::int_type WrappedStdout::overflow(int_type character) {
  if (!traits_type::eq_int_type(character, traits_type::eof())) {
    const char letter = traits_type::to_char_type(character);
    return xsputn(&letter, 1) == 1 ? character : traits_type::eof();
  }
  return traits_type::not_eof(character);
}

std::streamsize WrappedStdout::xsputn(const char* text, std::streamsize count) {
  const std::string_view added(text, static_cast<std::size_t>(count));
  pending_ += added;
  // Lines go out as they are completed, so that a long answer takes no memory.
  const bool ends_line = added.find('\n') != std::string_view::npos;
  return !ends_line || write_lines() ? count : 0;
}

// A line without its end stays until that comes.
int WrappedStdout::sync() {
  return write_lines() ? replaced_->pubsync() : -1;
}

bool WrappedStdout::write_lines() {
  const std::size_t end = pending_.rfind('\n') + 1;  // 0: there is no complete line
  const std::string text =
      wrap_text(std::string_view(pending_).substr(0, end), terminal_columns(STDOUT_FILENO));
  pending_.erase(0, end);
  return replaced_->sputn(text.data(), std::ssize(text)) == std::ssize(text);
}

void print_to_stderr(const std::string& lines) {
  const std::string text = wrap_text(lines, terminal_columns(STDERR_FILENO));
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void Console::answer(const std::string& lines) const {
  if (!json) {
    // Both streams may be one terminal.
    std::cout << lines << std::flush;
  } else if (!quiet) {
    print_to_stderr(lines);
  }
}

void Console::notice(const std::string& lines) const {
  if (!quiet) print_to_stderr(lines);
}

void forget_lost_output() {
  class Nowhere : public std::streambuf {
    int_type overflow(int_type character) override { return traits_type::not_eof(character); }
  };
  static Nowhere& nowhere = *new Nowhere;             // outlives the streams
  if (!std::cout.flush()) std::cout.rdbuf(&nowhere);  // which clears the error
}

void append_format(std::string& text, const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  const std::size_t before = text.size();
  text.resize(before + static_cast<std::size_t>(std::max(length, 0)));
  // vsnprintf's zero falls on the one that ends the string.
  std::vsnprintf(text.data() + before, text.size() - before + 1, format, again);
  va_end(again);
}

}  // namespace sluice::cli
