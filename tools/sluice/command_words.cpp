#include "tools/sluice/command_words.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <vector>

#include "base/edit_distance.hpp"
#include "base/error.hpp"

namespace sluice::cli {
namespace {

// "; did you mean 'X'?" with the nearest word after `before`; where none is near, the help to read.
std::string suggestion(const std::string& word, const std::vector<std::string>& known,
                       const std::string& before, const CLI::App& command) {
  const auto distance = [&](const std::string& other) { return edit_distance(word, other); };
  const auto nearest = std::min_element(
      known.begin(), known.end(),
      [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
  if (nearest == known.end() || !may_be_typing_error(*nearest, distance(*nearest))) {
    return "; see " + command_path(command) + " --help";
  }
  return "; did you mean '" + before + *nearest + "'?";
}

std::vector<std::string> long_options(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

}  // namespace

std::string command_path(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  return (parent == nullptr ? "" : command_path(*parent) + " ") + command.get_name();
}

const CLI::App& named_command(const CLI::App& app, std::span<char* const> words) {
  const CLI::App* command = &app;
  for (const char* const word : words) {
    const std::vector<const CLI::App*> commands = command->get_subcommands(nullptr);
    if (word[0] == '-' || commands.empty()) break;
    const auto found = std::find_if(commands.begin(), commands.end(),
                                    [&](const CLI::App* each) { return each->get_name() == word; });
    if (found == commands.end()) {
      std::vector<std::string> names;
      for (const CLI::App* each : commands) names.push_back(each->get_name());
      throw InputError("'" + shown(word) + "' is not a command" +
                       suggestion(shown(word), names, command_path(*command) + " ", *command));
    }
    command = *found;
  }
  return *command;
}

void refuse_unknown_options(const CLI::App& app, std::span<char* const> words) {
  const CLI::App& command = named_command(app, words);
  for (const std::string_view word : words) {
    if (word == "--") return;
    const bool is_long = word.starts_with("--");
    // A number may be negative.
    const bool is_short = !is_long && word.size() > 1 && word[0] == '-' &&
                          std::isdigit(static_cast<unsigned char>(word[1])) == 0;
    if (!is_long && !is_short) continue;
    const std::string name(is_long ? word.substr(0, word.find('=')) : word.substr(0, 2));
    const bool is_top = command.get_parent() != nullptr && app.get_option_no_throw(name) != nullptr;
    if (is_top || command.get_option_no_throw(name) != nullptr) continue;
    const std::vector<std::string> known =
        is_long ? long_options(command) : std::vector<std::string>();
    throw InputError("unknown option '" + shown(name) + "'" +
                     suggestion(shown(name.substr(std::min<std::size_t>(2, name.size()))), known,
                                "--", command));
  }
}

}  // namespace sluice::cli
