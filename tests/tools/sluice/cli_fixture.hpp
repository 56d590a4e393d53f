// The program itself, run in a directory of its own that holds a small configuration and a text.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/child_process.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

inline Words operator+(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

inline constexpr std::chrono::seconds kCliDeadline{60};
// A modelled link that slows a run: every copy takes this long, and no bit differs.
inline constexpr const char* kSlowLink = "memory.link_latency=20ms";

// Every line of text; a last one without its newline is a failure of the test.
std::vector<std::string> lines_of(const std::string& text);
// stdout of a command that was given --json: each line an object with the member "event".
std::vector<Json> events_of(const ChildOutcome& outcome);
// The events of one kind.
std::vector<Json> events_of(const ChildOutcome& outcome, const std::string& kind);

// All numbers of an event by their paths in it.
std::map<std::string, double> numbers_of(const Json& event);

// "weights_hash" of the done event; empty where the run did not end.
std::string hash_of(const ChildOutcome& outcome);

void write_file(const std::filesystem::path& path, const std::string& bytes);
std::string read_file(const std::filesystem::path& path);

// An llm.c file of 16-bit tokens.
std::string llmc_bytes(const std::vector<std::uint16_t>& tokens);

class CliTest : public ::testing::Test {
 protected:
  CliTest();

  const std::filesystem::path& path() const { return directory_.path(); }
  std::filesystem::path path(const std::string& name) const { return directory_.path() / name; }

  // The variables of every program that a test starts: no profile but one that doctor makes here;
  // no fio.
  std::map<std::string, std::string> environment() const;
  std::unique_ptr<ChildProcess> start(const Words& arguments) const;
  ChildOutcome run(const Words& arguments) const;
  // Runs a line of sh, in which $SLUICE is the program.
  ChildOutcome run_shell(const std::string& line) const;
  // Runs and expects exit 0.
  ChildOutcome succeed(const Words& arguments) const;

  // `train config.toml --json` with these values of keys.
  static Words train_words(const Words& settings = {});
  // Starts a slow run that lives until a signal ends it, and waits for its first step.
  std::unique_ptr<ChildProcess> begin_run(const Words& settings = {}) const;
  // Ends it with a signal that it saves for.
  static ChildOutcome end_run(ChildProcess& child, int signal = SIGTERM);
  // Runs until this event is out, and kills it there.
  void kill_after(const std::string& event, const Words& arguments) const;

  // The one file of this name below a directory.
  std::filesystem::path find_file(const std::string& directory, const std::string& name) const;
  // "weights_hash" of the done event that a run wrote below its directory.
  std::string logged_hash(const std::string& directory) const;

  // Every file under the directory with its bytes and its time of writing; directories with "/".
  std::map<std::string, std::string> snapshot() const;

  // The command is refused: exit 2, one sentence on stderr with all of `words`, and nothing on disk
  // was created or changed. With --json among the arguments, an event too. Returns the sentence.
  std::string expect_refused(const Words& arguments, const Words& words) const;

 private:
  std::unique_ptr<ChildProcess> start_command(const Words& command) const;
  TempDirectory directory_;
};

}  // namespace sluice::testing
