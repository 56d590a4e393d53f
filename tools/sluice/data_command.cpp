// `sluice data`: the tokens that each step and micro-batch of a run uses. A sample that passes the
// end of a file is named by the places of its first and its last token.
//
// The samples come from data::Dataset::sample, which the training reads its batches by. Steps,
// micro-batches and samples are counted from 1, as in the events of a run.
#include <charconv>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "engine/config/config.hpp"
#include "engine/data/dataset.hpp"
#include "engine/data/dataset_options.hpp"
#include "tools/sluice/commands.hpp"

namespace sluice::cli {
namespace {

constexpr std::int64_t kMostSteps = 1'000'000'000'000;

struct StepRange {
  std::int64_t first = 1;
  std::int64_t last = 1;
};

// "7", "1..100"; empty: all steps of the run.
StepRange step_range(const std::string& text, std::int64_t all) {
  if (text.empty()) return {1, all};
  const auto number = [&](std::string_view digits) {
    std::int64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    const bool valid = error == std::errc() && stop == end && value >= 1 && value <= kMostSteps;
    return valid ? value : 0;
  };
  const std::string_view view(text);
  const auto dots = view.find("..");
  StepRange range;
  range.first = number(view.substr(0, dots));
  range.last = dots == std::string_view::npos ? range.first : number(view.substr(dots + 2));
  if (range.first == 0 || range.last < range.first) {
    throw InputError("--steps '" + shown(text) + "' must be a step, such as 7, or two, such as " +
                     "1..100; steps are counted from 1");
  }
  return range;
}

struct Place {
  std::int64_t step, micro_batch, sample;  // from 1
};

void print_sample(const data::Dataset& data, const Place& place, std::int64_t tokens, bool json) {
  const data::Dataset::Sample sample =
      data.sample(place.step - 1, place.micro_batch - 1, place.sample - 1);
  const data::TokenStream::Position at = data.stream().position_of(sample.first_token);
  const data::TokenStream::Position last =
      data.stream().position_of(sample.first_token + static_cast<std::uint64_t>(tokens) - 1);
  if (json) {
    const nlohmann::ordered_json event{
        {"event", "sample"},      {"step", place.step},         {"micro_batch", place.micro_batch},
        {"sample", place.sample}, {"number", sample.index + 1}, {"epoch", sample.epoch + 1},
        {"file", at.file},        {"offset", at.token},         {"tokens", tokens},
        {"last_file", last.file}, {"last_offset", last.token}};
    std::cout << lenient_json_text(event) << '\n';
    return;
  }
  std::cout << "step " << place.step << "  micro-batch " << place.micro_batch << "  sample "
            << place.sample << " (number " << sample.index + 1 << " of the run, epoch "
            << sample.epoch + 1 << ")  " << at.file << " from token " << at.token;
  const bool in_one_file = last.token - at.token == static_cast<std::uint64_t>(tokens) - 1;
  if (!in_one_file) std::cout << " to " << last.file << " token " << last.token;
  std::cout << ", " << tokens << " tokens\n";
}

}  // namespace

int data_command(const DataArguments& arguments) {
  config::Config config = config::load_config(arguments.config.path, arguments.config.overrides);
  if (config.train.micro_batch == config::Config::kAutoCount) {
    // The samples of a step and their order are the same, however they are divided.
    config.train.micro_batch = config.train.batch;
    config.train.accumulate = 1;
  }
  const StepRange range = step_range(arguments.steps, config.train.steps);
  std::int64_t samples = range.last;
  if (__builtin_mul_overflow(samples, config.train.accumulate, &samples) ||
      __builtin_mul_overflow(samples, config.train.micro_batch, &samples)) {
    throw InputError("--steps '" + shown(arguments.steps) + "' makes more than 2^63 samples");
  }
  const data::Dataset data(data::dataset_options(config));
  const std::int64_t tokens = config.train.seq + 1;  // the inputs, and the target of the last one
  for (std::int64_t step = range.first; step <= range.last; ++step) {
    for (std::int64_t mb = 1; mb <= config.train.accumulate; ++mb) {
      for (std::int64_t i = 1; i <= config.train.micro_batch; ++i) {
        print_sample(data, {step, mb, i}, tokens, arguments.json);
      }
    }
    if (!std::cout) break;  // main reports that stdout is closed
  }
  return 0;
}

}  // namespace sluice::cli
