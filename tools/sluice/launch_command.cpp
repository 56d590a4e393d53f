// `sluice launch`: the ranks of a job on this machine, and its restarts.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/core_shares.hpp"
#include "base/error.hpp"
#include "tools/sluice/commands.hpp"
#include "tools/sluice/rank_processes.hpp"
#include "tools/sluice/terminal.hpp"

namespace sluice::cli {
namespace {

std::string own_program() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) throw Error("the path of this program cannot be read from /proc/self/exe");
  return path.data();
}

// `--resume`, `--resume PATH` and `--resume=PATH`.
bool resumes(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "--resume" || word.starts_with("--resume=");
  });
}

bool has_word(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// A word with a slash is a program; anything else is a command of this one.
std::vector<std::string> command_words(const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  if (words.front().find('/') == std::string::npos) words.insert(words.begin(), own_program());
  return words;
}

std::string start_line(const RankJob& job, const RankJobOptions& options) {
  std::string cores;
  for (const cpu_set_t& share : options.cores) {
    cores += (cores.empty() ? " on processors " : " | ") + describe_cpus(share);
  }
  if (cores.empty()) cores = ", not pinned";
  return "launch   " + std::to_string(options.ranks) + " ranks" + cores + ", port " +
         std::to_string(job.port()) + "\n";
}

}  // namespace

int launch_command(const LaunchArguments& arguments) {
  if (arguments.command.empty()) {
    throw InputError(
        "launch needs a command after --, such as: sluice launch -n 2 -- train demo.toml");
  }
  const std::string& name = arguments.command.front();
  if (name == "plan" || name == "verify") {
    throw InputError("'" + name + "' needs no launch: one process of it counts all ranks itself");
  }
  const Console console{false, arguments.quiet};
  RankJobOptions options;
  options.ranks = static_cast<int>(arguments.ranks);
  options.command = command_words(arguments.command);
  options.grace_seconds = arguments.grace_seconds;
  options.variables.emplace_back("SLUICE_LAUNCH", make_token());
  options.bare_stdout = has_word(arguments.command, "--json");
  if (arguments.pins) options.cores = share_cores(options.ranks);
  for (std::int64_t restart = 0;; ++restart) {
    RankJob job(options);
    console.notice(start_line(job, options));
    const RankJobEnd end = job.run();
    if (!options.bare_stdout) forget_lost_output();
    // A failed check and refused input stay so, and a person who stops a job wants no other.
    const bool is_fault = end.status > 2 && end.stop_signal == 0;
    if (!is_fault || restart == arguments.restarts) return end.status;
    console.notice("launch   restart " + std::to_string(restart + 1) + " of " +
                   std::to_string(arguments.restarts) + "\n");
    // From the last commit of this launcher's runs; a fault may have come before the first.
    if (arguments.command.front() == "train" && !resumes(options.command)) {
      options.command.insert(options.command.end(), {"--resume", "--or-new"});
      options.variables.emplace_back("SLUICE_RESTART", "1");
    }
  }
}

}  // namespace sluice::cli
