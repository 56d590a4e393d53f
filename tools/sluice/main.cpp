// The sluice program: streams, one command, its errors.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/log.hpp"
#include "tools/sluice/command_line.hpp"
#include "tools/sluice/standard_streams.hpp"
#include "tools/sluice/terminal.hpp"

namespace sluice::cli {
namespace {

// One sentence on stderr, and as an event where --json was given.
int report_error(const std::string& message, int status, std::string_view code, bool json) {
  print_to_stderr("sluice: " + message + "\n");
  if (json) {
    const nlohmann::ordered_json event{
        {"event", "error"}, {"code", std::string(code)}, {"message", message}};
    std::cout << lenient_json_text(event) << std::endl;
  }
  return status;
}

// The library throws std::system_error only where a thread cannot be started: its text has no
// subject.
std::string message_of(const std::system_error& error) {
  if (error.code() != std::errc::resource_unavailable_try_again) return error.what();
  return std::string("a thread cannot be started: ") + error.what() +
         "; raise the limits on processes and memory (ulimit -u, ulimit -v, a container's "
         "pids limit)";
}

int run(int argc, char** argv, bool json) {
  // Before parsing: errors of parsing are events too.
  std::optional<PrivateStdout> events;
  std::optional<WrappedStdout> wrapped;
  try {
    if (json) {
      events.emplace();
    } else if (terminal_columns(STDOUT_FILENO) > 0) {
      wrapped.emplace();
    }
    const Command command = parse_command_line(argc, argv);
    const int status = command();
    if (!std::cout.flush()) throw Error("the output cannot be written to stdout");
    return status;
  } catch (const Error& error) {
    return report_error(error.what(), error.exit_status(), error.code(), json);
  } catch (const std::system_error& error) {
    return report_error(message_of(error), 3, "fault", json);
  } catch (const std::bad_alloc&) {
    return report_error(
        "this process gets no more memory; raise its limit (ulimit -v, a container's memory)", 3,
        "out_of_memory", json);
  } catch (const std::exception& error) {
    return report_error(error.what(), 3, "fault", json);
  }
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  try {
    sluice::cli::open_missing_streams();
  } catch (const sluice::Error& error) {
    return sluice::cli::report_error(error.what(), error.exit_status(), error.code(), false);
  }
  sluice::set_log_sink([](sluice::LogLevel level, const std::string& message) {
    if (level != sluice::LogLevel::kDebug)
      sluice::cli::print_to_stderr("sluice: " + message + "\n");
  });
  const bool json = std::any_of(
      argv + 1, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; });
  return sluice::cli::run(argc, argv, json);
}
