// Texts made from the commands and options of the program: help, the manual page, completion.
#pragma once

#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): of CLI11
class App;
}

namespace sluice::cli {

// The help of a command, in lines of at most 80 columns.
std::string help_text(const CLI::App& command);
// The manual page sluice(1), in roff: all commands with their options.
std::string man_page(const CLI::App& app);
// A script for "bash" or "zsh" that completes commands, options, and the values that are known:
// machines after --hardware, keys after --set.
std::string completion_script(const CLI::App& app, const std::string& shell,
                              const std::vector<std::string>& machines,
                              const std::vector<std::string>& keys);

}  // namespace sluice::cli
