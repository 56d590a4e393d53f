// Configurations drawn from a seed, each key by itself, so that any three values of them meet: the
// mesh, the ZeRO stage, the order, the optimizer, the precision, the clip, places, the checkpoint
// mode and shapes down to one layer. Each is planned or refused in a sentence, and what is planned
// has one rank's bits.
//
// Most values do not go together. One configuration in four is drawn freely. The draws of the
// others leave out the pairs that are refused most often, so that most of them are planned.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "base/error.hpp"
#include "engine/config/shapes.hpp"
#include "engine/planner/batch_split.hpp"
#include "kernels/kernels.hpp"
#include "tests/support/random_training.hpp"
#include "tests/support/training_world.hpp"

namespace sluice::testing {

inline constexpr int kDrawnSteps = 4;

struct DrawnConfiguration {
  Overrides model;   // decides the result on any mesh
  Overrides inner;   // the tensor and context group, which decides bits
  Overrides delays;  // the mesh and its order, where they decide the result; else empty
  Overrides mesh;    // all of the mesh
  Overrides memory;
  bool durable = false;
};

// The mesh, as later draws look at it.
struct DrawnMesh {
  std::int64_t data = 1, pipeline = 1, tensor = 1, context = 1, zero = 0;
  bool delays = false;
  bool ring = false;
  bool served = false;
  std::string mode;
  bool free = false;  // nothing is left out

  bool is_plain() const { return pipeline == 1 && tensor == 1 && context == 1; }
};

// A drawn number from 1 to `most`, small ones more often than large ones.
inline std::int64_t drawn_count(Draws& draw, std::uint64_t most) {
  return 1 + static_cast<std::int64_t>(draw.below(1 + draw.below(most)));
}

inline std::string drawn_optimizer(Draws& draw, const DrawnMesh& mesh) {
  const std::string any =
      draw.pick({"adamw", "adamw", "adam", "sgd", "lion", "adafactor", "sm3", "muon"});
  const bool whole = any == "adafactor" || any == "sm3" || any == "muon";
  return "optimizer.name=" + (whole && mesh.tensor > 1 && !mesh.free ? "adamw" : any);
}

inline Overrides drawn_shape(Draws& draw, const DrawnMesh& mesh) {
  struct Width {
    std::int64_t hidden, heads, kv_heads;
  };
  const auto width = draw.pick<Width>(
      {{16, 1, 1}, {32, 2, 1}, {32, 4, 4}, {48, 4, 2}, {48, 6, 2}, {64, 4, 4}, {64, 8, 8}});
  const bool divides = mesh.free || mesh.tensor * mesh.context <= 2;
  Overrides shape{
      draw.pick({"model.family=gpt2", "model.family=llama"}),
      setting("model.layers", drawn_count(draw, 4)),
      setting("model.hidden", divides && mesh.tensor == 1 ? width.hidden : 64),
      setting("model.heads", divides && mesh.tensor == 1 ? width.heads : 8),
      setting("model.kv_heads", divides && mesh.tensor == 1 ? width.kv_heads : 8),
      setting("model.vocab", draw.pick<std::int64_t>({256, 257, 300})),
      setting("train.seq", 2 * mesh.context * mesh.tensor * draw.pick<std::int64_t>({1, 2, 4, 7}))};
  const bool tied = draw.chance(2) && (mesh.free || (!mesh.delays && mesh.mode != "asp"));
  shape.emplace_back(tied ? "model.tie_embeddings=true" : "model.tie_embeddings=false");
  if (draw.chance(4)) shape.push_back(setting("model.ffn", draw.pick<std::int64_t>({20, 40, 96})));
  return shape;
}

inline Overrides drawn_model(Draws& draw, const DrawnMesh& mesh) {
  const std::int64_t rounds = drawn_count(draw, 4);
  const bool at_once = mesh.delays || mesh.mode == "asp" || mesh.mode == "rotating";
  Overrides model = drawn_shape(draw, mesh) + Overrides{setting("train.steps", kDrawnSteps)};
  const std::string optimizer = drawn_optimizer(draw, mesh);
  model = model + Overrides{optimizer, "optimizer.lr=0.005"};
  const std::string any = draw.pick({"bf16", "fp32", "fp16"});
  const std::string precision = at_once && !mesh.free ? "bf16" : any;
  model.push_back("train.precision=" + precision);
  const std::string clip = draw.pick({"1.0", "0", "0.01"});
  model.push_back("train.clip=" + (at_once && !mesh.free ? "0" : clip));
  const bool summed = mesh.free || (!at_once && !mesh.ring);
  if (draw.chance(16)) {
    model = model + Overrides{setting("train.batch", mesh.data * rounds), "train.micro_batch=auto"};
  } else {
    const std::int64_t count = mesh.mode == "asp" ? 1 : mesh.data * rounds;
    model.push_back(setting("train.accumulate", mesh.free ? drawn_count(draw, 8) : count));
    const std::int64_t samples = draw.pick<std::int64_t>({1, 1, 2, 3});
    model.push_back(setting("train.micro_batch", mesh.context > 1 && !mesh.free ? 1 : samples));
    // The power of two of each rank's groups.
    if (summed && draw.chance(3)) {
      const std::int64_t each = rounds % 2 == 0 && draw.chance(2) ? 2 : 1;
      model.push_back(setting("train.fold_groups", mesh.data * each));
    }
  }
  const auto sometimes = [&](std::uint64_t in, const std::string& text) {
    if (draw.chance(in)) model.push_back(text);
  };
  const auto sometimes_where = [&](bool has_meaning, std::uint64_t in, const std::string& text) {
    if (draw.chance(in) && has_meaning) model.push_back(text);
  };
  const bool reads_momentum = optimizer.ends_with("=sgd") || optimizer.ends_with("=muon");
  sometimes_where(mesh.free || reads_momentum, 4, "optimizer.momentum=0");
  sometimes(mesh.free ? 3 : 6, "optimizer.moments=bf16");
  sometimes(mesh.free || mesh.tensor == 1 ? 6 : 1000, "optimizer.moments=8bit");
  sometimes(10, "optimizer.states=split");
  sometimes_where(mesh.free || precision == "fp16", 6, "train.loss_scaling=static");
  return model;
}

inline Overrides drawn_memory(Draws& draw, const DrawnMesh& mesh, bool durable) {
  static constexpr std::array kPlaces{"auto", "auto", "device", "pinned", "storage"};
  const auto place = [&](bool any) {
    const std::string drawn = kPlaces[draw.below(kPlaces.size())];
    return any || mesh.free || mesh.data == 1 ? drawn : std::string("auto");
  };
  Overrides memory = draw.chance(2) ? kChosenByHand : kSearchedFor;
  const std::string weight = place(mesh.zero == 3);
  const std::string gradient = place(mesh.zero > 0);
  memory = memory + places(weight, gradient, place(mesh.mode != "rotating"));
  const auto sometimes = [&](std::uint64_t in, const std::string& text) {
    if (draw.chance(in)) memory.push_back(text);
  };
  sometimes(2,
            std::string("recompute.policy=") +
                draw.pick({"none", "unit", "selective", "attention", "every:2", "sqrt", "auto"}));
  sometimes(mesh.free || mesh.pipeline == 1 ? 6 : 1000, "train.order=unit");
  const bool at_once = mesh.delays || mesh.mode == "asp" || mesh.mode == "rotating";
  sometimes(mesh.free || !at_once ? 2 : 1000,
            std::string("optimizer.placement=") +
                draw.pick({"after_backward", "in_backward", "next_forward", "speculative"}));
  sometimes(mesh.free ? 6 : 30,
            setting("optimizer.carried_units", draw.pick<std::int64_t>({0, 1})));
  sometimes(3, "memory.place.activation=" + place(true));
  sometimes(12, "memory.place.partial=" + place(true));
  sometimes(4, setting("memory.prefetch", static_cast<std::int64_t>(draw.below(4))));
  sometimes(6, "memory.chunk=4MiB");
  sometimes(6, "memory.update_ring=" + std::string(draw.pick({"64KiB", "1MiB"})));
  if (draw.chance(6)) {
    memory =
        memory + Overrides{setting("memory.device", draw.pick<std::int64_t>({2, 6, 14})) + "MiB",
                           setting("memory.pinned", draw.pick<std::int64_t>({1, 3, 9})) + "MiB"};
  }
  if (durable) memory = memory + Overrides{"checkpoint.mode=durable", "checkpoint.every=1"};
  return memory;
}

inline DrawnConfiguration drawn_configuration(std::uint64_t seed) {
  Draws draw(seed, "test/drawn_configurations");
  DrawnConfiguration drawn;
  DrawnMesh mesh;
  mesh.free = draw.chance(4);
  mesh.data = draw.pick<std::int64_t>({1, 2, 2, 3, 4});
  mesh.pipeline = draw.pick<std::int64_t>({1, 1, 2, 3});
  mesh.tensor = draw.pick<std::int64_t>({1, 1, 1, 1, 2, 4});
  mesh.context = draw.pick<std::int64_t>({1, 1, 1, 1, 1, 2});
  mesh.zero = static_cast<std::int64_t>(draw.below(mesh.data > 1 ? 4 : 1));
  const bool sums = mesh.data > 1 && (mesh.free || mesh.is_plain());
  const std::string order = draw.pick({"1f1b", "1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2",
                                       "zb-v", "vertical", "pipedream", "pipedream-vsync", "2bw"});
  const bool delayed = order.starts_with("pipedream") || order == "2bw";
  mesh.delays = mesh.pipeline > 1 && delayed;
  mesh.ring = sums && draw.chance(6);
  mesh.served = sums && (mesh.free || !mesh.ring) && draw.chance(4);
  if (mesh.served) mesh.mode = draw.pick({"bsp", "asp", "rotating"});
  if (!mesh.free && (mesh.served || mesh.ring)) mesh.zero = 0;
  if (mesh.tensor > 1) drawn.inner.push_back(setting("parallel.tensor", mesh.tensor));
  if (mesh.tensor > 1 && draw.chance(2)) drawn.inner.emplace_back("parallel.sequence=true");
  if (mesh.context > 1) {
    drawn.inner.push_back(setting("parallel.context", mesh.context));
    drawn.inner.push_back(std::string("parallel.context_attention=") +
                          draw.pick({"all-to-all", "ring"}));
  }
  drawn.mesh = drawn.inner + Overrides{setting("parallel.data", mesh.data),
                                       setting("parallel.pipeline", mesh.pipeline),
                                       setting("parallel.zero", mesh.zero)};
  if (mesh.pipeline > 1) drawn.mesh.push_back("parallel.schedule=" + order);
  if (mesh.ring) drawn.mesh.emplace_back("parallel.reduction=ring");
  if (mesh.served) {
    drawn.mesh =
        drawn.mesh + Overrides{"parallel.server=true", "parallel.server_mode=" + mesh.mode};
  }
  if (sums && draw.chance(8)) {
    drawn.mesh.push_back(setting("parallel.node_ranks", draw.pick<std::int64_t>({2, 2, 3})));
  }
  if (mesh.data > 1 && draw.chance(8)) drawn.mesh.emplace_back("parallel.bucket=64KiB");
  // These are outside of law 1. A rotating server makes the steps of one rank.
  if (mesh.delays || mesh.ring || mesh.mode == "asp") drawn.delays = drawn.mesh;
  drawn.durable = draw.chance(2) && (mesh.free || !mesh.delays);
  drawn.model = drawn_model(draw, mesh);
  drawn.memory = drawn_memory(draw, mesh, drawn.durable);
  return drawn;
}

// The plainest run that must have the same bits.
inline Overrides reference_of(const DrawnConfiguration& drawn) {
  Overrides plain = drawn.model + kChosenByHand;
  if (!drawn.delays.empty()) return plain + drawn.delays;
  return plain + drawn.inner + places("device", "device", "device") +
         Overrides{"optimizer.placement=after_backward"};
}

// --- outcomes ------------------------------------------------------------------------------------

// Names the configuration of this process if a signal ends it, since nothing else can then.
class NamedInCrash {
 public:
  NamedInCrash(std::uint64_t seed, const Overrides& settings) {
    const std::string text = "\nthe configuration of seed " + std::to_string(seed) +
                             " crashed: " + ::testing::PrintToString(settings) + "\n";
    bytes_ = std::min(text.size(), sizeof text_);
    std::copy_n(text.data(), bytes_, text_);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) std::signal(signal, tell);
  }
  ~NamedInCrash() {
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) std::signal(signal, SIG_DFL);
  }

 private:
  static void tell(int signal) {
    const auto written = ::write(STDERR_FILENO, text_, bytes_);
    static_cast<void>(written);
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  static inline char text_[4096];
  static inline std::size_t bytes_ = 0;
};

enum class DrawnOutcome { kPlanned, kRefused, kFailed };

// Whether a refusal is one: a sentence, and none of our own mistakes.
inline bool is_refusal(const std::string& sentence) {
  return !sentence.empty() && sentence.find("please report") == std::string::npos &&
         sentence.find("internal") == std::string::npos;
}

struct PlannedDraw {
  DrawnOutcome outcome = DrawnOutcome::kFailed;
  std::string why;      // it is not planned
  Overrides settled{};  // the micro-batches of its plan
};

// Loads and plans a configuration for its whole world. The planner proves the schedules of all
// ranks.
inline PlannedDraw plan_drawn(const TrainingBench& bench, const Overrides& settings) {
  static const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  PlannedDraw planned;
  try {
    config::Config config = bench.config("run", settings);
    const auto split = planner::plan_split(
        config, model::Model(config::model_shape(config), config::tensor_share(config, 0)),
        *kernels, planner::HardwareProfile{});
    const auto* refusal = std::get_if<planner::Refusal>(&split.result);
    if (refusal == nullptr) {
      planned.settled = {setting("train.micro_batch", config.train.micro_batch),
                         setting("train.accumulate", config.train.accumulate)};
      planned.outcome = DrawnOutcome::kPlanned;
      return planned;
    }
    planned.why = refusal->sentence();
  } catch (const InputError& error) {
    planned.why = error.what();
  } catch (const std::exception& error) {
    planned.why = error.what();
    return planned;
  }
  if (is_refusal(planned.why)) planned.outcome = DrawnOutcome::kRefused;
  return planned;
}

}  // namespace sluice::testing
