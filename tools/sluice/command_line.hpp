// From the words of a command line to a command that can run.
#pragma once

#include "tools/sluice/commands.hpp"

namespace sluice::cli {

// Parses the arguments; --help and --version print to stdout and return a command that does
// nothing. Throws InputError: one sentence, which names the nearest command for an unknown one.
Command parse_command_line(int argc, char** argv);

}  // namespace sluice::cli
