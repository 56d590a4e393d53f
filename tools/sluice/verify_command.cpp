// `sluice verify`: prints one line for each way to run the configuration, and the first figure that
// differs.
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "engine/config/config.hpp"
#include "engine/train/plan/backend.hpp"
#include "tools/sluice/commands.hpp"
#include "tools/sluice/terminal.hpp"
#include "tools/verify/verify.hpp"

namespace sluice::cli {
namespace {

config::Config load(const ConfigArguments& arguments, const std::vector<std::string>& more) {
  std::vector<std::string> settings = arguments.overrides;
  settings.insert(settings.end(), more.begin(), more.end());
  return config::load_config(arguments.path, settings);
}

void tell(const char* result, const std::string& name, const std::string& detail,
          const VerifyArguments& arguments) {
  const Console console{arguments.json, arguments.quiet};
  std::string line;
  append_format(line, "%-8s %s%s\n", result, name.c_str(),
                detail.empty() ? "" : (": " + detail).c_str());
  console.answer(line);
  if (!arguments.json) return;
  const nlohmann::ordered_json event{
      {"event", "verify"}, {"variant", name}, {"result", result}, {"detail", detail}};
  std::cout << lenient_json_text(event) << std::endl;
}

// The run with which the variants of a configuration are compared.
class Expected {
 public:
  Expected(const VerifyArguments& arguments)
      : arguments_(arguments),
        given_(run(load(arguments.config, {}), "the configuration as it is")) {}

  // The setting that puts the results outside law 1, so that they are not compared with those of
  // other ranks: they depend on the number of ranks, or on the schedule. Empty: none does.
  std::string own_results() const {
    const auto& parallel = given_.settled.parallel;
    if (parallel.has_server_order()) {
      return "parallel.server_mode makes several updates in one schedule, which are not compared "
             "with those of others";
    }
    if (parallel.delays_updates()) {
      return "a parallel.schedule with delayed updates makes results of its own, "
             "which are not those of one rank";
    }
    const bool ring = parallel.data > 1 && parallel.reduction == config::Config::GradientSum::kRing;
    if (!ring) return "";
    return "parallel.reduction = \"ring\" makes results that depend on the number of ranks, " +
           std::to_string(parallel.data);
  }
  const config::Config& settled() const { return given_.settled; }
  // The ranks run on processors, whose bits are not those of a GPU: they have an expectation of
  // their own.
  const verify::Figures& figures_for(const verify::Variant& variant) {
    if (!variant.has_ranks || given_.settled.memory.backend == config::Config::Backend::kHost) {
      return given_.figures;
    }
    if (!on_host_) {
      config::Config config = load(arguments_.config, {"memory.backend=host", "parallel.data=1",
                                                       "parallel.zero=0", "parallel.pipeline=1"});
      verify::keep_microbatches(config, given_.settled);
      on_host_ = run(config, "one rank on the processors");
    }
    return on_host_->figures;
  }

 private:
  verify::Outcome run(const config::Config& config, const std::string& name) const {
    verify::Outcome outcome = verify::run_steps(config, arguments_.steps);
    tell("run", name,
         std::to_string(arguments_.steps) + (arguments_.steps == 1 ? " step" : " steps") +
             ", weights " + outcome.figures.weights_hash,
         arguments_);
    return outcome;
  }

  const VerifyArguments& arguments_;
  verify::Outcome given_;
  std::optional<verify::Outcome> on_host_;
};

// Says why the runs have no GPU, if the configuration leaves that open.
void note_device(const VerifyArguments& arguments) {
  config::Config config = load(arguments.config, {});
  const std::string missing = train::settle_backend(config);
  if (missing.empty()) return;
  Console{arguments.json, arguments.quiet}.notice(
      "device   CPU (emulates a GPU's memory); GPU not used: " + missing + "\n");
}

}  // namespace

int verify_command(const VerifyArguments& arguments) {
  note_device(arguments);
  Expected expected(arguments);
  int compared = 0, differing = 0, skipped = 0;
  for (const verify::Variant& variant : verify::list_variants(expected.settled())) {
    if (variant.has_ranks && !expected.own_results().empty()) {
      ++skipped;
      tell("skipped", variant.name, expected.own_results(), arguments);
      continue;
    }
    try {
      config::Config config = load(arguments.config, variant.settings);
      verify::keep_microbatches(config, expected.settled());
      const verify::Figures& figures = expected.figures_for(variant);
      const std::string difference =
          verify::find_difference(figures, verify::run_steps(config, arguments.steps).figures);
      ++compared;
      differing += difference.empty() ? 0 : 1;
      tell(difference.empty() ? "same" : "DIFFERS", variant.name, difference, arguments);
    } catch (const InputError& error) {
      ++skipped;
      tell("skipped", variant.name, error.what(), arguments);
    }
  }
  Console{arguments.json, arguments.quiet}.answer("verify   " + std::to_string(compared) +
                                                  " compared, " + std::to_string(skipped) +
                                                  " skipped\n");
  // Without a comparison nothing is proved.
  return differing == 0 && compared > 0 ? 0 : 1;
}

}  // namespace sluice::cli
