// The words of a command line, checked against the commands and options that there are before CLI11
// parses them: CLI11 only says that a word was not expected, and a person needs the nearest one.
#pragma once

#include <span>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): of CLI11
class App;
}

namespace sluice::cli {

// "sluice bench adam"
std::string command_path(const CLI::App& command);

// The command that the words name, from `app` on: the words before the first one that is no
// command. Throws InputError for the first word that should be a command and is none.
const CLI::App& named_command(const CLI::App& app, std::span<char* const> words);

// Throws InputError where the words name an option that their command does not have.
void refuse_unknown_options(const CLI::App& app, std::span<char* const> words);

}  // namespace sluice::cli
