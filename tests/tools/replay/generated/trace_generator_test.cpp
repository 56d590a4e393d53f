#include "tools/replay/generated/trace_generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"
#include "tests/support/check_trace.hpp"
#include "tests/support/thrown.hpp"
#include "tools/replay/generated/model_states.hpp"
#include "tools/replay/generated/transformer_pass.hpp"

namespace sluice::replay {
namespace {

bool same_trace(const record::MemoryTrace& a, const record::MemoryTrace& b) {
  const auto allocation_key = [](const record::TraceAllocation& one) {
    return std::tuple(one.bytes, one.stream, one.pool, one.category, one.name);
  };
  return std::equal(a.allocations.begin(), a.allocations.end(), b.allocations.begin(),
                    b.allocations.end(),
                    [&](const record::TraceAllocation& x, const record::TraceAllocation& y) {
                      return allocation_key(x) == allocation_key(y);
                    }) &&
         std::equal(a.operations.begin(), a.operations.end(), b.operations.begin(),
                    b.operations.end(),
                    [](const record::TraceOperation& x, const record::TraceOperation& y) {
                      return x.action == y.action && x.allocation == y.allocation;
                    });
}

record::MemoryTrace make(const std::string& family, std::uint64_t seed) {
  return generate_trace({.family = family, .seed = seed});
}

std::string refusal(const GeneratorOptions& options) {
  return testing::refusal_of([&] { return generate_trace(options); });
}

// The live bytes at the begin of each iteration.
std::vector<std::uint64_t> bytes_at_steps(const record::MemoryTrace& trace) {
  std::vector<std::uint64_t> result;
  std::uint64_t live_bytes = 0;
  for (const record::TraceOperation& operation : trace.operations) {
    const std::uint64_t bytes = trace.allocations[operation.allocation].bytes;
    if (operation.action == record::TraceAction::kStep) result.push_back(live_bytes);
    if (operation.action == record::TraceAction::kAlloc) live_bytes += bytes;
    if (operation.action == record::TraceAction::kFree ||
        operation.action == record::TraceAction::kFreePending) {
      live_bytes -= bytes;
    }
  }
  result.push_back(live_bytes);
  return result;
}

class GeneratedTrace : public ::testing::TestWithParam<std::string> {};

TEST_P(GeneratedTrace, IsSoundAndOfThePromisedScale) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const record::MemoryTrace trace = make(GetParam(), seed);
    testing::check_trace(trace);
    EXPECT_EQ(trace.format, "generated");
    const std::uint64_t peak_bytes = record::peak_live_bytes(trace);
    EXPECT_GE(peak_bytes, 5 * kGiB) << trace.source;
    EXPECT_LE(peak_bytes, 60 * kGiB) << trace.source;
    EXPECT_GE(trace.operations.size(), 10'000u) << trace.source;
    EXPECT_LE(trace.operations.size(), 150'000u) << trace.source;
    const auto steps = std::count_if(
        trace.operations.begin(), trace.operations.end(),
        [](const record::TraceOperation& one) { return one.action == record::TraceAction::kStep; });
    EXPECT_EQ(steps, 6) << trace.source;
    const auto small =
        std::count_if(trace.allocations.begin(), trace.allocations.end(),
                      [](const record::TraceAllocation& one) { return one.bytes < kMiB; });
    EXPECT_GE(small * 8, static_cast<std::ptrdiff_t>(trace.allocations.size())) << trace.source;
    for (const record::TraceAllocation& one : trace.allocations) {
      ASSERT_NE(one.name, 0u);
      ASSERT_LT(one.name, trace.names.size());
      ASSERT_GT(one.bytes, 0u);
    }
  }
}

// States and workspaces stay after the first iteration. Later iterations leave no other blocks.
TEST_P(GeneratedTrace, HoldsTheSameAfterEachIterationFromTheSecondOn) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::vector<std::uint64_t> held = bytes_at_steps(make(GetParam(), seed));
    for (std::size_t i = 3; i < held.size(); ++i) EXPECT_EQ(held[i], held[2]) << seed;
    EXPECT_GT(held[1], held[0]) << seed;
  }
}

TEST_P(GeneratedTrace, IsAFunctionOfItsSeed) {
  const record::MemoryTrace trace = make(GetParam(), 5);
  EXPECT_TRUE(same_trace(trace, make(GetParam(), 5)));
  EXPECT_FALSE(same_trace(trace, make(GetParam(), 6)));
}

INSTANTIATE_TEST_SUITE_P(Families, GeneratedTrace, ::testing::ValuesIn(generator_families()),
                         [](const auto& family) { return family.param; });

TEST(TraceGenerator, UsesOfOtherStreamsEndLater) {
  for (const char* family : {"zero3", "moe"}) {
    const record::MemoryTrace trace = make(family, 1);
    std::size_t pending = 0;
    for (const record::TraceOperation& operation : trace.operations) {
      if (operation.action == record::TraceAction::kFreePending) ++pending;
    }
    EXPECT_GT(pending, 100u) << family;
  }
}

TEST(TraceGenerator, RefusesOptionsThatContradictEachOther) {
  const std::pair<GeneratorOptions, const char*> cases[] = {
      {{.family = "sparse"}, "'sparse' must be one of dense, zero3"},
      {{.iterations = 0}, "iterations = 0"},
      {{.layers = 257}, "layers = 257 must be 0 (drawn), or 1 to 256"},
      {{.hidden = 1000, .heads = 7}, "multiple of heads"},
  };
  for (const auto& [options, words] : cases) {
    EXPECT_TRUE(testing::mentions(refusal(options), words));
  }
}

// The rule of thumb: 34 bytes per token and hidden element for a block with 16-bit elements and
// dropout, without attention's matrix.
TEST(TransformerPass, ABlockSavesTheBytesOfTheRuleOfThumb) {
  generated::TransformerShape shape;
  shape.layers = 1;
  shape.hidden = 2048;
  shape.heads = shape.kv_heads = 16;
  shape.ffn = 4 * 2048;
  shape.vocab = 32'000;
  shape.is_gated = false;
  const generated::Batch batch{4, 1024};
  generated::TraceRecorder recorder;
  struct NoGradients : generated::GradientSink {
    void accept(std::size_t, std::uint32_t, generated::BufferId) override {}
  } none;
  generated::TransformerPass pass(recorder, shape, none);
  pass.set_batch(batch);
  generated::SavedBlock saved;
  const std::uint64_t stream_bytes = batch.tokens() * shape.hidden * 2;
  const generated::BufferId input = recorder.alloc(stream_bytes, Category::kActivation, "input");
  generated::BufferId output = pass.forward_block(1, input, saved);
  recorder.free(output);
  const record::MemoryTrace trace = recorder.finish();
  testing::check_trace(trace);
  std::uint64_t saved_bytes = 0;
  std::vector<bool> live(trace.allocations.size(), false);
  for (const record::TraceOperation& one : trace.operations) {
    live[one.allocation] = one.action == record::TraceAction::kAlloc;
  }
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (live[i]) saved_bytes += trace.allocations[i].bytes;
  }
  const std::uint64_t rule_bytes = 34 * batch.tokens() * shape.hidden;
  // Statistics of rows: two norms of two numbers, a logarithm for each head, in 32 bits.
  const std::uint64_t statistics_bytes = batch.tokens() * (2 * 8 + shape.heads * 4) + 16;
  EXPECT_EQ(saved_bytes, rule_bytes + statistics_bytes);
  EXPECT_EQ(generated::saved_block_bytes(shape, batch.tokens()), rule_bytes);
}

bool has_name(const record::MemoryTrace& trace, const std::string& name) {
  return std::find(trace.names.begin(), trace.names.end(), name) != trace.names.end();
}

// The peak: 16 to 22 bytes for a parameter (with an optimizer's temporaries or DDP's buckets), 34
// for an activation, and the logits.
TEST(TraceGenerator, ThePeakFollowsFromTheSizes) {
  std::size_t seen = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    GeneratorOptions options;
    options.seed = seed;
    options.layers = 16;
    options.hidden = 2048;
    options.heads = options.kv_heads = 16;
    options.ffn = 4 * options.hidden;
    options.vocab = 32'000;
    options.sequence = 2048;
    options.micro_batch = 8;
    const record::MemoryTrace trace = generate_trace(options);
    if (!has_name(trace, "mlp.dropout")) continue;
    ++seen;
    const double h = 2048, tokens = 8 * 2048, layers = 16, vocab = 32'000;
    const double parameters = layers * 12 * h * h + 2 * vocab * h;
    const double expected = 16 * parameters + layers * 34 * tokens * h + 4 * tokens * vocab;
    const auto peak = static_cast<double>(record::peak_live_bytes(trace));
    EXPECT_GT(peak, 0.75 * expected) << trace.source;
    EXPECT_LT(peak, 1.6 * expected) << trace.source;
  }
  EXPECT_GE(seen, 3u);
}

}  // namespace
}  // namespace sluice::replay
