// Text for people on the program's two streams. Answers go to stdout; progress and notices go to
// stderr. On a terminal both fit its width; output that is no terminal is never wrapped.
#pragma once

#include <cstddef>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

// The columns of the terminal that `descriptor` is: COLUMNS if that is set, else those that the
// terminal states, else 80. 0 if it is no terminal.
std::size_t terminal_columns(int descriptor);

// The variable by which a launcher tells its ranks the columns that it has for their lines.
inline constexpr const char* kRelayedColumns = "SLUICE_COLUMNS";
// The columns for a line that should stay one: terminal_columns(), or those of the launcher's
// terminal that relays what is written to `descriptor`. 0: any number.
std::size_t line_columns(int descriptor);

// Columns that a text takes: its characters, each of one or more bytes of UTF-8.
std::size_t text_columns(std::string_view text);

// Breaks each line of `text` that is longer than `columns` between words. A continued line is
// indented to the column of the last text after a gap of two or more spaces (a label's text, a
// table's last column), else by two. A word longer than a line is cut. columns = 0 breaks nothing.
std::string wrap_text(std::string_view text, std::size_t columns);

// Joins fields with two spaces. Where the line is longer than `columns`, fields are left out in
// ascending order of `importance`; the most important one stays. columns = 0 leaves out none.
struct StatusField {
  std::string text;
  int importance = 0;
};
std::string fit_fields(std::vector<StatusField> fields, std::size_t columns);

// While it lives, std::cout wraps complete lines to the terminal that stdout is. One at a time.
class WrappedStdout : private std::streambuf {
 public:
  WrappedStdout();
  ~WrappedStdout() override;
  WrappedStdout(const WrappedStdout&) = delete;
  WrappedStdout& operator=(const WrappedStdout&) = delete;

 private:
  int_type overflow(int_type character) override;
  std::streamsize xsputn(const char* text, std::streamsize count) override;
  int sync() override;
  bool write_lines();

  std::streambuf* const replaced_;
  std::string pending_;
};

// Writes lines to stderr, wrapped on a terminal. Any thread may call it.
void print_to_stderr(const std::string& lines);

// Where a command's words go. json: stdout holds events, so answers for people join the notices on
// stderr. quiet: no notices, and no answers for people next to events.
struct Console {
  bool json = false;
  bool quiet = false;

  void answer(const std::string& lines) const;
  void notice(const std::string& lines) const;
  bool shows_answers() const { return !(json && quiet); }
};

// Drops the rest of std::cout where its reader has gone, so that main reports no error: a run's
// result is its directory. Not for answers, which are a command's only result.
void forget_lost_output();

// Appends text as printf does.
void append_format(std::string& text, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

}  // namespace sluice::cli
