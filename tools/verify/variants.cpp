#include <bit>
#include <cstdio>

#include "tools/verify/verify.hpp"

namespace sluice::verify {
namespace {

Variant state_in(const std::string& tier, const std::string& words) {
  Variant variant{"all state " + words, {}, false};
  for (const char* const kind : {"weight", "gradient", "optimizer"}) {
    variant.settings.push_back(std::string("memory.place.") + kind + "=" + tier);
  }
  return variant;
}

Variant ranks(int count, int zero) {
  return {std::to_string(count) + " ranks, ZeRO-" + std::to_string(zero),
          {"parallel.data=" + std::to_string(count), "parallel.zero=" + std::to_string(zero),
           "parallel.server=false", "parallel.node_ranks=0", "parallel.transport=auto",
           "memory.backend=host"},
          true};
}

// stages: of each rank.
Variant pipeline(int count, const char* order, int stages, int data_ranks = 1) {
  const std::string data =
      data_ranks == 1 ? std::string() : std::to_string(data_ranks) + " x ZeRO-1, ";
  return {data + "pipeline of " + std::to_string(count) + " ranks, " + order,
          {"parallel.pipeline=" + std::to_string(count), std::string("parallel.schedule=") + order,
           "parallel.virtual_stages=" + std::to_string(stages),
           "parallel.data=" + std::to_string(data_ranks),
           "parallel.zero=" + std::to_string(data_ranks == 1 ? 0 : 1), "parallel.transport=auto",
           "memory.backend=host"},
          true};
}

std::string number_text(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

}  // namespace

std::vector<Variant> list_variants(const config::Config& given) {
  const bool durable = given.checkpoint.mode == config::Config::CheckpointMode::kDurable;
  std::vector<Variant> variants{
      state_in("device", "on the device"),
      state_in("pinned", "in pinned memory"),
      state_in("storage", "on storage"),
      {"nothing recomputed", {"recompute.policy=none"}, false},
      {"every unit recomputed", {"recompute.policy=unit"}, false},
      {std::string("checkpoints in ") + (durable ? "scratch" : "durable") + " mode",
       {std::string("checkpoint.mode=") + (durable ? "scratch" : "durable")},
       false},
      {"updates after backward", {"optimizer.placement=after_backward"}, false},
      {"updates in the next forward pass", {"optimizer.placement=next_forward"}, false},
      {"one rank",
       {"parallel.data=1", "parallel.zero=0", "parallel.pipeline=1", "parallel.virtual_stages=1",
        "parallel.server=false", "parallel.node_ranks=0", "parallel.transport=auto",
        "memory.backend=host"},
       true},
      ranks(2, 3),
      ranks(2, 0),
      ranks(3, 2),
      ranks(4, 3),
      ranks(4, 1),
      pipeline(2, "1f1b", 1),
      pipeline(3, "zb-h1", 1),
      pipeline(2, "1f1b", 1, 2),
      {"2 ranks, one a server",
       {"parallel.data=2", "parallel.zero=0", "parallel.server=true", "parallel.transport=auto",
        "memory.backend=host"},
       true}};
  // With tensor or context groups the ranks of data and pipelines are groups.
  if (given.parallel.inner_ranks() == 1) return variants;
  for (Variant& variant : variants) {
    if (const std::size_t at = variant.name.find("rank"); at != std::string::npos) {
      variant.name.replace(at, 4, "group");
    }
  }
  return variants;
}

void keep_microbatches(config::Config& variant, const config::Config& settled) {
  variant.train.micro_batch = settled.train.micro_batch;
  variant.train.accumulate = settled.train.accumulate;
}

std::string find_difference(const Figures& expected, const Figures& found) {
  const auto differ = [&](const char* what, const std::vector<double>& before,
                          const std::vector<double>& now) -> std::string {
    for (std::size_t step = 0; step < before.size() && step < now.size(); ++step) {
      if (std::bit_cast<std::uint64_t>(before[step]) == std::bit_cast<std::uint64_t>(now[step])) {
        continue;
      }
      return std::string("the ") + what + " of step " + std::to_string(step + 1) + " is " +
             number_text(now[step]) + " instead of " + number_text(before[step]);
    }
    return {};
  };
  if (std::string text = differ("loss", expected.losses, found.losses); !text.empty()) return text;
  if (std::string text = differ("norm", expected.norms, found.norms); !text.empty()) return text;
  if (expected.weights_hash != found.weights_hash) {
    return "the weights have the hash " + found.weights_hash + " instead of " +
           expected.weights_hash;
  }
  return {};
}

}  // namespace sluice::verify
