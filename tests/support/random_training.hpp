// Seeded configurations for property tests: both families, odd sizes, every placement, tight and
// loose budgets. A function of the seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/draws.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::testing {

inline std::string setting(const char* key, std::int64_t value) {
  return std::string(key) + "=" + std::to_string(value);
}

inline Overrides random_model(Draws& draw) {
  struct Width {
    std::int64_t hidden, heads, kv_heads;
  };
  const auto width =
      draw.pick<Width>({{32, 2, 1}, {64, 4, 2}, {72, 6, 3}, {72, 9, 1}, {96, 8, 8}, {128, 8, 2}});
  const bool llama = draw.chance(2);
  Overrides model{
      llama ? "model.family=llama" : "model.family=gpt2",
      setting("model.layers", 1 + static_cast<std::int64_t>(draw.below(4))),
      setting("model.hidden", width.hidden),
      setting("model.heads", width.heads),
      setting("model.kv_heads", width.kv_heads),
      setting("model.vocab", draw.pick<std::int64_t>({256, 257, 300, 1000})),
      draw.chance(2) ? "model.tie_embeddings=true" : "model.tie_embeddings=false",
      setting("train.seq", draw.pick<std::int64_t>({8, 16, 31, 48, 64})),
      setting("train.micro_batch", 1 + static_cast<std::int64_t>(draw.below(3))),
      setting("train.accumulate", 1 + static_cast<std::int64_t>(draw.below(3))),
      draw.pick({"train.precision=bf16", "train.precision=fp32", "train.precision=fp16"})};
  if (draw.chance(2))
    model.push_back(setting("model.ffn", draw.pick<std::int64_t>({40, 100, 264})));
  return model;
}

// Placements that exist: an optimizer on the device needs weights and gradients there.
inline Overrides random_placement(Draws& draw) {
  static const char* const kPlaces[] = {"auto", "device", "pinned", "storage"};
  const std::string optimizer = kPlaces[draw.below(4)];
  if (optimizer == "device") return places("device", "device", "device");
  return places(kPlaces[draw.below(4)], kPlaces[draw.below(4)], optimizer);
}

inline Overrides random_movement(Draws& draw) {
  return {setting("memory.chunk", draw.pick<std::int64_t>({2, 2, 4, 6})) + "MiB",
          setting("memory.prefetch", static_cast<std::int64_t>(draw.below(5))),
          std::string("recompute.policy=") +
              draw.pick({"none", "unit", "selective", "attention", "every:2", "sqrt", "auto"}),
          std::string("train.order=") + draw.pick({"microbatch", "unit", "auto"}),
          std::string("optimizer.placement=") +
              draw.pick({"after_backward", "next_forward", "speculative", "auto"}),
          std::string("memory.place.activation=") +
              draw.pick({"auto", "auto", "device", "pinned", "storage"})};
}

// Draws budgets from hopeless to ample.
inline Overrides random_budgets(Draws& draw) {
  const auto device = 2 + static_cast<std::int64_t>(draw.below(30));
  const auto pinned = 1 + static_cast<std::int64_t>(draw.below(16));
  const auto storage = static_cast<std::int64_t>(draw.below(16));
  return {setting("memory.device", device) + "MiB", setting("memory.pinned", pinned) + "MiB",
          setting("memory.storage", storage) + "MiB"};
}

}  // namespace sluice::testing
