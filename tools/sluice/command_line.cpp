// One function for each subcommand: its options, and the command that they make.
#include "tools/sluice/command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.hpp"
#include "engine/config/config.hpp"
#include "engine/config/schema.hpp"
#include "engine/planner/price/bundled_profiles.hpp"
#include "tools/sluice/arguments.hpp"
#include "tools/sluice/command_words.hpp"
#include "tools/sluice/help_text.hpp"
#include "tools/sluice/version_text.hpp"

namespace sluice::cli {
namespace {

constexpr const char* kExitStatus =
    "Exit status: 0 done; 1 a check that was asked for failed; 2 bad input or a refused plan, and "
    "nothing was touched; 3 a fault at run time; 128 + the signal that stopped it.";
constexpr std::int64_t kMostRanks = 1'000'000'000;
constexpr const char* kSetMeaning = "KEY=VALUE, any key, e.g. memory.device=64MiB";

std::vector<std::string> machine_names() {
  return planner::profile_names(planner::bundled_profile_directory());
}

void add_config(CLI::App& command, ConfigArguments& config) {
  command.add_option("CONFIG", config.path, "TOML configuration")->required();
  command.add_option("--set", config.overrides, kSetMeaning);
}

void add_json(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "Events on stdout, one JSON object per line");
}

void add_quiet(CLI::App& command, bool& quiet, const char* meaning) {
  command.add_flag("-q,--quiet", quiet, meaning);
}

// `chosen` becomes run(*arguments) when the subcommand is on the command line.
template <class Arguments>
void choose(CLI::App& command, Command& chosen, std::shared_ptr<Arguments> arguments,
            int (*run)(const Arguments&)) {
  command.callback(
      [&chosen, arguments, run] { chosen = [arguments, run] { return run(*arguments); }; });
}

// As choose(), for a command that reads a configuration: its relative paths need a working
// directory.
template <class Arguments>
void choose_configured(CLI::App& command, Command& chosen, std::shared_ptr<Arguments> arguments,
                       int (*run)(const Arguments&)) {
  command.callback([&chosen, arguments, run] {
    chosen = [arguments, run] {
      check_working_directory();
      return run(*arguments);
    };
  });
}

void add_train(CLI::App& app, Command& chosen) {
  const auto train = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model");
  command->add_option("CONFIG", train->config.path,
                      "TOML configuration, or a run to resume by its own configuration");
  command->add_option("--set", train->config.overrides, kSetMeaning);
  command->add_option("--steps", train->steps, "Stop after this many steps in all")
      ->check(whole_number(0, 1'000'000'000'000));
  CLI::Option* resume =
      command
          ->add_option("--resume", train->resume,
                       "Continue this run, or the newest run with a state in this log.dir "
                       "(default: CONFIG's log.dir)")
          ->expected(0, 1);
  command
      ->add_flag("--or-new", train->or_new,
                 "Start a new run if there is no state to resume, as launch --restarts does")
      ->needs(resume);
  command->add_flag("--accept-arithmetic", train->accept_arithmetic,
                    "Resume although this machine rounds matrix products differently");
  add_json(*command, train->json);
  add_quiet(*command, train->quiet, "No progress and no notices: the plan and the summary alone");
  command->callback([&chosen, train, resume] {
    train->resumes = resume->count() > 0;
    // An option with several values takes the word after them, too. A setting has an equals sign.
    std::vector<std::string>& settings = train->config.overrides;
    if (train->config.path.empty() && !settings.empty() &&
        settings.back().find('=') == std::string::npos) {
      train->config.path = settings.back();
      settings.pop_back();
    }
    chosen = [train] {
      check_working_directory();
      return train_command(*train);
    };
  });
}

// The ranks' command stands after "--", where this program's options end.
void add_launch(CLI::App& app, Command& chosen, std::span<char* const> rank_words) {
  const auto launch = std::make_shared<LaunchArguments>();
  launch->command.assign(rank_words.begin(), rank_words.end());
  CLI::App* command = app.add_subcommand(
      "launch", "Start a command as several ranks on this machine: launch -n N -- COMMAND...");
  command->add_option("-n,--ranks", launch->ranks, "Number of ranks")
      ->required()
      ->check(whole_number(1, 1024));
  command
      ->add_option("--restarts", launch->restarts,
                   "Start again after a fault, at most this often; train resumes its run")
      ->capture_default_str()
      ->check(whole_number(0, 1'000'000));
  command
      ->add_option("--grace", launch->grace_seconds,
                   "Seconds that the other ranks have to end once one has failed")
      ->capture_default_str()
      ->check(seconds_between(0, 86400));
  command->add_flag("!--no-pin", launch->pins, "Do not bind each rank to cores of its own");
  add_quiet(*command, launch->quiet,
            "No notices of the launcher; ranks have a --quiet of their own");
  choose(*command, chosen, launch, launch_command);
}

void add_plan(CLI::App& app, Command& chosen) {
  const auto plan = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand(
      "plan", "Print the memory and time that a run needs, or a change that fits");
  add_config(*command, plan->config);
  command->add_option("--hardware", plan->hardware,
                      "The machine to plan for: a name such as rtx4090-64g-1nvme, or the file of a "
                      "profile (doctor writes one). Budgets default to its memory and are not "
                      "compared with this machine's");
  command
      ->add_option("--world", plan->world,
                   "Number of ranks, in place of parallel.data: a multiple of parallel.pipeline")
      ->check(whole_number(1, kMostRanks));
  command
      ->add_option(
          "--mesh", plan->mesh,
          "auto: with --world and --hardware, choose parallel.data, tensor, pipeline and zero for "
          "the fastest step")
      ->check(CLI::IsMember({"auto"}));
  command->add_option(
      "--trace", plan->trace,
      "Write the simulated step's trace here; of several ranks that of rank 0 alone");
  command->add_flag("--free-optimizer", plan->free_optimizer,
                    "Also simulate the step with an optimizer that takes no time; of several ranks "
                    "that of rank 0 alone");
  command->add_flag("--next", plan->next,
                    "Also plan with more memory, another drive, more micro-batches or 8-bit "
                    "moments, and print the gain of each");
  command->add_flag("--explain", plan->explain, "Also print what the search found");
  add_json(*command, plan->json);
  std::string machines;
  for (const std::string& name : machine_names()) machines += "\n  " + name;
  command->footer("Machines for --hardware:" + machines);
  add_quiet(*command, plan->quiet, "No notices: the plan alone");
  choose_configured(*command, chosen, plan, plan_command);
}

void add_data(CLI::App& app, Command& chosen) {
  const auto data = std::make_shared<DataArguments>();
  CLI::App* command = app.add_subcommand("data", "Print which tokens each step of a run uses");
  add_config(*command, data->config);
  command->add_flag("--order", data->order, "Print the samples in the order of training")
      ->required();
  command->add_option("--steps", data->steps,
                      "Only these steps, counted from 1: 7, or 1..100 (default: all of the run)");
  add_json(*command, data->json);
  choose_configured(*command, chosen, data, data_command);
}

void add_verify(CLI::App& app, Command& chosen) {
  const auto verify = std::make_shared<VerifyArguments>();
  CLI::App* command = app.add_subcommand(
      "verify",
      "Run a few steps with state in other tiers and on other numbers of ranks, and "
      "compare the results bit for bit");
  add_config(*command, verify->config);
  command->add_option("--steps", verify->steps, "Steps of each run")
      ->capture_default_str()
      ->check(whole_number(1, 1000));
  add_json(*command, verify->json);
  add_quiet(*command, verify->quiet, "No notices: the table alone");
  choose_configured(*command, chosen, verify, verify_command);
}

void add_doctor(CLI::App& app, Command& chosen) {
  const auto doctor = std::make_shared<DoctorArguments>();
  CLI::App* command =
      app.add_subcommand("doctor", "Check and measure this machine; name what is missing");
  command->add_option("--storage", doctor->storage_path, "A directory on the disk to measure")
      ->capture_default_str();
  command->add_option("--seconds", doctor->seconds, "Approximate time for each figure")
      ->capture_default_str()
      ->check(seconds_between(0.001, 60.0));
  command->add_flag("--replace", doctor->replace,
                    "Save the new profile although the saved one has better rates");
  add_json(*command, doctor->json);
  CLI::Option* clean =
      command
          ->add_option("--clean", doctor->clean_directories,
                       "Instead: list stale files of killed runs in these directories (default "
                       "./runs): locks, storage files, unfinished checkpoints; and state whose "
                       "log is not there, which stays")
          ->expected(0, -1);
  command
      ->add_flag("--yes", doctor->yes,
                 "Remove the files that --clean lists, but for state, which stays")
      ->needs(clean);
  command->callback([&chosen, doctor, clean] {
    doctor->clean = clean->count() > 0;
    chosen = [doctor] { return doctor_command(*doctor); };
  });
}

void add_report(CLI::App& app, Command& chosen) {
  const auto report = std::make_shared<ReportArguments>();
  CLI::App* command =
      app.add_subcommand("report", "Show a run: memory, lanes, its plan and its measured times");
  command
      ->add_option("RUN", report->run,
                   "A run's directory, or a log.dir: its newest run; or a trace")
      ->required();
  command->add_option("--format", report->format, "html or perfetto")->capture_default_str();
  command->add_option("-o", report->output, "The file to write");
  choose(*command, chosen, report, report_command);
}

void add_replay(CLI::App& app, Command& chosen) {
  const auto replay = std::make_shared<ReplayArguments>();
  CLI::App* command = app.add_subcommand(
      "replay", "Replay recorded allocations through allocators: what each reserves, and why");
  command->add_option("TRACE", replay->trace,
                      "A PyTorch memory snapshot, an RMM log, a CSV of ours, or lifetimes to "
                      "pack (id,lower,upper,size)");
  command->add_option("--generate", replay->generate, "Instead of a file: dense, zero3 or moe");
  command->add_option("--seed", replay->seed, "Of the generated trace")
      ->check(whole_number(0, std::numeric_limits<std::int64_t>::max()))
      ->needs("--generate");
  command->add_option("--iterations", replay->iterations, "Of the generated trace")
      ->needs("--generate");
  command->add_option("--device", replay->device, "Which device of a snapshot")
      ->excludes("--generate");
  command
      ->add_option("--policy", replay->policies,
                   "native, expandable, dynamic, planned; all if not given")
      ->delimiter(',');
  command->add_option("--capacity", replay->capacity,
                      "The device's memory, such as 16GiB: say which policies fit");
  command->add_flag("!--no-least", replay->least, "Do not search each policy's least capacity");
  command->add_option("--plot", replay->plot,
                      "Draw addresses over time as one SVG file, with a panel for each policy");
  command->add_option("--write", replay->write, "Write the trace as CSV");
  command->add_option(
      "--snapshot", replay->snapshot,
      "Write what our allocator (dynamic, or planned where not dynamic is asked for) recorded "
      "and holds after it, as a PyTorch memory snapshot (pytorch.org/memory_viz opens it)");
  add_json(*command, replay->json);
  choose(*command, chosen, replay, replay_command);
}

// help, and completion: texts about all commands, which are made once all of these are known.
void add_help(CLI::App& app, Command& chosen) {
  const auto words = std::make_shared<std::vector<std::string>>();
  const auto man = std::make_shared<bool>(false);
  CLI::App* help = app.add_subcommand("help", "Print the help of a command, or the manual page");
  help->add_option("COMMAND", *words, "Such as plan, or bench adam");
  help->add_flag("--man", *man, "The manual page of all commands, in roff: man -l -");
  help->callback([&app, &chosen, words, man] {
    std::vector<char*> names;
    for (std::string& word : *words) names.push_back(word.data());
    const CLI::App& command = named_command(app, names);
    const std::string path = command_path(command);
    const auto depth = static_cast<std::size_t>(std::count(path.begin(), path.end(), ' '));
    if (depth < words->size()) {
      throw InputError("help: '" + shown((*words)[depth]) + "' is a word too many, since '" + path +
                       "' has no commands");
    }
    const std::string text = *man ? man_page(app) : help_text(command);
    chosen = [text] {
      std::cout << text;
      return 0;
    };
  });
  const auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand(
      "completion", "Print a script with which a shell completes commands, options and keys");
  completion->add_option("SHELL", *shell, "bash: source <(sluice completion bash); or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  completion->callback([&app, &chosen, shell] {
    std::vector<std::string> keys;
    for (const config::ConfigKey& key : config::config_schema()) keys.push_back(key.path);
    const std::string text = completion_script(app, *shell, machine_names(), keys);
    chosen = [text] {
      std::cout << text;
      return 0;
    };
  });
}

}  // namespace

Command parse_command_line(int argc, char** argv) {
  std::span<char*const> words(argv, static_cast<std::size_t>(argc)), rank_words;
  if (argc > 1 && std::string_view(argv[1]) == "launch") {
    const auto end = std::find(words.begin(), words.end(), std::string_view("--"));
    if (end != words.end()) rank_words = {end + 1, words.end()};
    words = {words.begin(), end};
  }
  CLI::App app{"Sluice trains models larger than GPU memory.", "sluice"};
  app.set_version_flag("--version", version_text);
  app.footer(kExitStatus);
  app.require_subcommand(0, 1);
  bool help_config = false;
  app.add_flag("--help-config", help_config, "Print every configuration key and exit");
  Command chosen;
  add_train(app, chosen);
  add_launch(app, chosen, rank_words);
  add_plan(app, chosen);
  add_data(app, chosen);
  add_verify(app, chosen);
  add_doctor(app, chosen);
  add_bench(app, chosen);
  add_report(app, chosen);
  add_replay(app, chosen);
  add_help(app, chosen);
  const std::span<char* const> arguments = words.subspan(std::min<std::size_t>(1, words.size()));
  const CLI::App& named = named_command(app, arguments);
  refuse_unknown_options(app, arguments);
  try {
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::CallForHelp&) {
    return [help = help_text(named)] {
      std::cout << help;
      return 0;
    };
  } catch (const CLI::Success& success) {
    app.exit(success);  // prints the version
    return [] { return 0; };
  } catch (const CLI::ExtrasError& error) {
    if (named.get_name() == "launch") {
      throw InputError(
          "launch takes its command after --, such as: sluice launch -n 2 -- train demo.toml");
    }
    throw InputError(error.what() + std::string("; see ") + command_path(named) + " --help");
  } catch (const CLI::ParseError& error) {
    throw InputError(error.what() + std::string("; see ") + command_path(named) + " --help");
  }
  if (help_config) {
    return [] {
      std::cout << config::config_help();
      return 0;
    };
  }
  if (chosen) return chosen;
  return [help = help_text(app)] {
    std::cout << help;
    return 2;
  };
}

}  // namespace sluice::cli
