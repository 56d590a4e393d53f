// The command line is described once, in CLI11's terms. Help, the manual page and completion walk
// over that description, so they cannot differ from the program.
//
// A completion script first finds the command among the words that stand before the cursor. Then it
// offers that command's options to a word that begins with "-", the known values to a word that
// follows an option which has some, and files to any other word.
#include "tools/sluice/help_text.hpp"

#include <CLI/CLI.hpp>
#include <functional>
#include <utility>

#include "tools/sluice/command_words.hpp"
#include "tools/sluice/terminal.hpp"

namespace sluice::cli {
namespace {

constexpr std::size_t kHelpColumns = 80;

// Calls `visit` with each command, parents first.
void walk(const CLI::App& app, const std::function<void(const CLI::App&)>& visit) {
  visit(app);
  for (const CLI::App* command : app.get_subcommands(nullptr)) walk(*command, visit);
}

// "--name" and "-n"; for a positional nothing.
std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

// "auto" and "host" of the type "TEXT:{auto,host}", which a check for membership makes.
std::vector<std::string> members(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// Text of a manual page: dashes that can be copied, no requests by accident.
std::string roff(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '\\') {
      escaped += "\\e";
    } else if (letter == '-') {
      escaped += "\\-";
    } else if ((letter == '.' || letter == '\'') && (escaped.empty() || escaped.back() == '\n')) {
      escaped += std::string("\\&") + letter;
    } else {
      escaped += letter;
    }
  }
  return escaped;
}

std::string man_option(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : spellings(option)) {
    names += (names.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  }
  if (names.empty()) {
    names = "\\fI" + roff(option.get_name(true)) + "\\fR";
  } else if (takes_value(option)) {
    names += " \\fI" + roff(option.get_type_name()) + "\\fR";
  }
  const std::string standard = option.get_default_str();
  return ".TP\n" + names + "\n" + roff(option.get_description()) +
         (standard.empty() ? "" : " [" + roff(standard) + "]") + "\n";
}

std::string man_command(const CLI::App& command) {
  std::string usage = command_path(command) + " [OPTIONS]", options;
  for (const CLI::Option* option : command.get_options()) {
    if (spellings(*option).empty()) {
      usage += option->get_required() ? " " + option->get_name(true)
                                      : " [" + option->get_name(true) + "]";
    }
    options += man_option(*option);
  }
  // CLI11 hands a footer down; the page has that of the program once.
  std::string footer = command.get_footer();
  if (footer == command.get_parent()->get_footer()) footer.clear();
  std::string description = command.get_description();
  if (!description.ends_with('.')) description += '.';
  return ".SS " + roff(usage) + "\n" + roff(description) + "\n" + options +
         (footer.empty() ? "" : ".PP\n" + roff(footer) + "\n");
}

// A word of a shell script, in single quotes.
std::string shell_word(const std::string& text) {
  std::string word = "'";
  for (const char letter : text) word += letter == '\'' ? "'\\''" : std::string(1, letter);
  return word + "'";
}

// The parts of a completion script that both shells share.
struct CompletionCases {
  std::string commands;  // patterns "sluice bench" | "sluice bench adam": a word that goes deeper
  // For each command: its name, and the names of its commands or options with their meaning.
  std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> words;
  std::vector<std::pair<std::string, std::string>> values;  // "sluice plan --mesh": "auto"
};

CompletionCases completion_cases(const CLI::App& app, const std::vector<std::string>& machines) {
  CompletionCases cases;
  walk(app, [&](const CLI::App& command) {
    const std::string path = command_path(command);
    if (&command != &app) cases.commands += (cases.commands.empty() ? "" : "|") + shell_word(path);
    auto& words = cases.words.emplace_back().second;
    cases.words.back().first = path;
    for (const CLI::App* each : command.get_subcommands(nullptr)) {
      words.emplace_back(each->get_name(), each->get_description());
    }
    for (const CLI::Option* option : command.get_options()) {
      std::vector<std::string> known = members(*option);
      for (const std::string& name : spellings(*option)) {
        words.emplace_back(name, option->get_description());
        if (name == "--hardware") known = machines;
        if (!known.empty()) cases.values.emplace_back(path + " " + name, joined(known, " "));
      }
    }
  });
  return cases;
}

// Finds the command in the words between program and cursor: launch's own command begins anew.
std::string find_command(const std::string& words, const CompletionCases& cases) {
  return "  local word command=sluice\n  for word in " + words +
         "; do\n    case \"$command $word\" in\n      " + cases.commands +
         ") command+=\" $word\" ;;\n      'sluice launch --') command=sluice ;;\n    esac\n  "
         "done\n";
}

std::string bash_script(const CompletionCases& cases, const std::string& keys) {
  std::string script =
      "# Completion of sluice for bash: source <(sluice completion bash)\n"
      "_sluice() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=\n" +
      find_command("\"${COMP_WORDS[@]:1:COMP_CWORD-1}\"", cases) +
      "  case \"$command $previous\" in\n    *' --set') words=" + shell_word(keys) +
      "; compopt -o nospace ;;\n";
  for (const auto& [place, values] : cases.values) {
    script += "    " + shell_word(place) + ") words=" + shell_word(values) + " ;;\n";
  }
  script += "    *) case $command in\n";
  for (const auto& [path, words] : cases.words) {
    std::string commands, options;
    for (const auto& [word, meaning] : words) {
      (word[0] == '-' ? options : commands) +=
          (word[0] == '-' ? options : commands).empty() ? word : " " + word;
    }
    script += "      " + shell_word(path) + ") words=" + shell_word(commands) +
              "; [[ $current == -* ]] && words=" + shell_word(options) + " ;;\n";
  }
  return script +
         "    esac ;;\n  esac\n  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- "
         "\"$current\")\n}\n"
         "complete -o bashdefault -o default -F _sluice sluice\n";
}

std::string zsh_script(const CompletionCases& cases, const std::string& keys) {
  std::string script =
      "#compdef sluice\n"
      "# Completion of sluice for zsh: save it as _sluice in a directory of $fpath, or\n"
      "# source <(sluice completion zsh) after compinit.\n"
      "_sluice() {\n"
      "  local -a found\n  local previous=${words[CURRENT-1]}\n" +
      find_command("${words[2,CURRENT-1]}", cases) +
      "  case \"$command $previous\" in\n    *' --set') compadd -S '' -- " + keys + "; return ;;\n";
  for (const auto& [place, values] : cases.values) {
    script += "    " + shell_word(place) + ") compadd -- " + values + "; return ;;\n";
  }
  script += "  esac\n  case $command in\n";
  for (const auto& [path, words] : cases.words) {
    std::string commands, options;
    for (const auto& [word, meaning] : words) {
      (word[0] == '-' ? options : commands) += " " + shell_word(word + ":" + meaning);
    }
    script += "    " + shell_word(path) + ") found=(" + commands +
              " )\n      [[ $PREFIX == -* ]] && found=(" + options + " ) ;;\n";
  }
  return script +
         "  esac\n  if (( $#found )); then _describe sluice found; else _files; fi\n}\n"
         "if [[ $funcstack[1] == _sluice ]]; then _sluice \"$@\"; else compdef _sluice sluice; "
         "fi\n";
}

}  // namespace

std::string help_text(const CLI::App& command) {
  const std::string text = command.get_formatter()->make_help(&command, command_path(command),
                                                              CLI::AppFormatMode::Normal);
  return wrap_text(text, kHelpColumns);
}

std::string man_page(const CLI::App& app) {
  const std::string version = app.version();  // the libraries follow in lines of their own
  std::string page = ".TH SLUICE 1 \"\" \"" + version.substr(0, version.find('\n')) +
                     "\" \"User Commands\"\n.SH NAME\nsluice \\- train models larger than GPU "
                     "memory\n.SH SYNOPSIS\n\\fBsluice\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"
                     ".SH DESCRIPTION\n" +
                     roff(app.get_description()) + "\n";
  for (const CLI::Option* option : app.get_options()) page += man_option(*option);
  page += ".SH COMMANDS\n";
  walk(app, [&](const CLI::App& command) {
    if (&command != &app) page += man_command(command);
  });
  return page + ".SH EXIT STATUS\n" + roff(app.get_footer()) +
         "\n.SH FILES\n.TP\n~/.cache/sluice/hardware.json\nThe profile of this machine, which "
         "\\fBsluice doctor\\fR measures and \\fBsluice plan\\fR reads.\n";
}

std::string completion_script(const CLI::App& app, const std::string& shell,
                              const std::vector<std::string>& machines,
                              const std::vector<std::string>& keys) {
  const CompletionCases cases = completion_cases(app, machines);
  const std::string words = keys.empty() ? "" : joined(keys, "= ") + "=";
  return shell == "bash" ? bash_script(cases, words) : zsh_script(cases, words);
}

}  // namespace sluice::cli
