// `sluice verify`: prints one line for each way to run the configuration, and the first figure that
// differs.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "engine/config/config.hpp"
#include "tools/sluice/commands.hpp"
#include "tools/verify/verify.hpp"

namespace sluice::cli {
namespace {

// A durable run's files stay; the bits are those of a scratch run.
constexpr const char* kNoFiles = "checkpoint.mode=scratch";

config::Config load(const ConfigArguments& arguments, const std::vector<std::string>& more) {
  std::vector<std::string> settings = arguments.overrides;
  settings.insert(settings.end(), more.begin(), more.end());
  settings.emplace_back(kNoFiles);
  return config::load_config(arguments.path, settings);
}

void tell(const char* result, const std::string& name, const std::string& detail, bool json) {
  std::fprintf(stderr, "%-8s %s%s\n", result, name.c_str(),
               detail.empty() ? "" : (": " + detail).c_str());
  if (!json) return;
  const nlohmann::ordered_json event{
      {"event", "verify"}, {"variant", name}, {"result", result}, {"detail", detail}};
  std::cout << event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
            << std::endl;
}

}  // namespace

int verify_command(const VerifyArguments& arguments) {
  const config::Config given = load(arguments.config, {});
  const verify::Figures expected = verify::run_steps(given, arguments.steps);
  tell("run", "the configuration as it is",
       std::to_string(arguments.steps) + (arguments.steps == 1 ? " step" : " steps") +
           ", weights " + expected.weights_hash,
       arguments.json);
  int differing = 0;
  for (const verify::Variant& variant : verify::list_variants()) {
    try {
      const config::Config config = load(arguments.config, variant.settings);
      const std::string difference =
          verify::find_difference(expected, verify::run_steps(config, arguments.steps));
      differing += difference.empty() ? 0 : 1;
      tell(difference.empty() ? "same" : "DIFFERS", variant.name, difference, arguments.json);
    } catch (const InputError& error) {
      tell("skipped", variant.name, error.what(), arguments.json);
    }
  }
  return differing == 0 ? 0 : 1;
}

}  // namespace sluice::cli
