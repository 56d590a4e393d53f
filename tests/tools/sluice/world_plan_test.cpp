// The printed plan of a job of several ranks is that of the job: of the ranks that need most of the
// device, and of the ranks that end last. Meshes are drawn; SLUICE_WORLD_PLANS is their number.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/rng.hpp"
#include "base/units.hpp"
#include "tests/tools/sluice/cli_fixture.hpp"

namespace sluice::testing {
namespace {

class WorldPlan : public CliTest {};

struct Draw {
  const CounterRng random{41, stream_of("test/world-plans")};
  std::uint64_t count = 0;
  std::uint64_t below(std::uint64_t bound) { return random.below(count++, bound); }
  template <typename T>
  T pick(std::initializer_list<T> of) {
    return of.begin()[below(of.size())];
  }
};

// A job on paper: several data-parallel ranks, stages, or both, with tensor groups or without.
Words drawn_job(Draw& draw) {
  const std::uint64_t pipeline = draw.pick<std::uint64_t>({1, 2, 3, 4, 8});
  const std::uint64_t data = pipeline == 1 ? 2 + draw.below(6) : 1 + draw.below(4);
  const std::uint64_t tensor = draw.pick<std::uint64_t>({1, 1, 2, 4});
  const auto of = [](const char* key, std::uint64_t value) {
    return std::string(key) + "=" + std::to_string(value);
  };
  Words settings{
      draw.pick({"model.family=gpt2", "model.family=llama"}),
      of("model.hidden", 256 * (1 + draw.below(4))),
      "model.heads=8",
      of("model.vocab", draw.pick<std::uint64_t>({512, 8192, 65536})),
      of("model.layers", 2 * pipeline + draw.below(6)),
      "train.seq=256",
      "train.precision=bf16",
      of("train.micro_batch", 1 + draw.below(4)),
      of("train.accumulate", data * (1 + draw.below(12))),
      of("parallel.pipeline", pipeline),
      of("parallel.tensor", tensor),
      of("parallel.zero", data == 1 ? 0 : draw.below(4)),
      "memory.device=auto",
      "memory.pinned=auto",
      "memory.place.optimizer=auto",
      draw.pick({"recompute.policy=none", "recompute.policy=unit", "recompute.policy=auto"}),
      draw.pick({"train.clip=0", "train.clip=1"})};
  if (pipeline > 1) {
    settings.emplace_back(draw.pick({"parallel.schedule=1f1b", "parallel.schedule=gpipe",
                                     "parallel.schedule=zb-h1", "parallel.schedule=interleaved"}));
  }
  if (settings.back() == "parallel.schedule=interleaved") {
    settings.emplace_back("parallel.virtual_stages=2");
  }
  return Words{"--hardware", draw.pick({"dgx-a100", "dgx-h100"}), "--world",
               std::to_string(data * pipeline * tensor), "--set"} +
         settings;
}

// The line that begins with this label; empty if there is none.
std::string line_of(const std::string& text, const std::string& label) {
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with(label + " ")) return line;
  }
  return {};
}

std::string tier_text(const Json& bytes) {
  const auto of = [&](const char* tier) {
    return format_bytes(bytes.at(tier).get<std::uint64_t>());
  };
  return "device " + of("device") + ", pinned " + of("pinned") + ", storage " + of("storage");
}

bool needs_less(const Json& one, const Json& other) {
  for (const char* tier : {"device", "pinned", "storage"}) {
    const auto a = one.at("peak_bytes").at(tier).get<std::uint64_t>();
    const auto b = other.at("peak_bytes").at(tier).get<std::uint64_t>();
    if (a != b) return a < b;
  }
  return false;
}

bool ends_before(const Json& one, const Json& other) {
  const auto a = one.at("end_s").get<double>(), b = other.at("end_s").get<double>();
  if (std::abs(a - b) > 1e-9 * b) return a < b;
  return one.at("compute_s").get<double>() < other.at("compute_s").get<double>();
}

double sum_of(const Json& seconds) {
  double sum = 0;
  for (const auto& [name, value] : seconds.items()) sum += value.get<double>();
  return sum;
}

// "rank 3" or "ranks 96-127", behind the stages.
std::string ranks_text(const Json& of_class) {
  const auto rank = of_class.at("rank").get<int>();
  return of_class.at("alike") == 1 ? "rank " + std::to_string(rank)
                                   : "ranks " + std::to_string(rank) + "-";
}

void expect_figures_of_the_job(const Json& event, const std::string& text) {
  const Json& ranks = event.at("per_rank");
  const auto fullest = std::max_element(ranks.begin(), ranks.end(), needs_less);
  const auto slowest = std::max_element(ranks.begin(), ranks.end(), ends_before);
  const Json& job = event.at("job");
  EXPECT_EQ(job.at("fullest").at("rank"), fullest->at("rank"));
  EXPECT_EQ(job.at("fullest").at("peak_bytes"), fullest->at("peak_bytes"));
  EXPECT_EQ(job.at("slowest").at("rank"), slowest->at("rank"));
  const auto step_s = event.at("step_time_s").get<double>();
  EXPECT_NEAR(job.at("slowest").at("end_s").get<double>(), step_s, 1e-9 * step_s);
  EXPECT_NEAR(sum_of(job.at("slowest").at("shares_s")), step_s, 1e-6 * step_s);
  EXPECT_NEAR(job.at("slowest").at("shares_s").at("passes").get<double>(),
              slowest->at("compute_s").get<double>(), 1e-6 * step_s);
  const Json& path = event.at("outlook").at("critical_path_s");
  EXPECT_NEAR(sum_of(path), step_s, 1e-6 * step_s);

  EXPECT_TRUE(holds(line_of(text, "plan"), tier_text(fullest->at("peak_bytes")))) << text;
  EXPECT_TRUE(holds(line_of(text, "fullest"), ranks_text(*fullest))) << text;
  EXPECT_TRUE(holds(line_of(text, "slowest"), ranks_text(*slowest))) << text;
  std::string longest;
  for (const auto& [name, seconds] : path.items()) {
    if (longest.empty() || seconds > path.at(longest)) longest = name;
  }
  EXPECT_EQ(event.at("bound_by"), longest);
  EXPECT_TRUE(holds(line_of(text, "a step"), "bound by " + longest)) << text;
  const Json& moved = job.at("slowest").at("bytes_moved");
  EXPECT_TRUE(holds(line_of(text, "a step"),
                    "up " + format_bytes(moved.at("upload").get<std::uint64_t>()) + ", down " +
                        format_bytes(moved.at("download").get<std::uint64_t>())))
      << text;
  for (const Json& row : event.at("outlook").at("memory")) {
    for (const char* tier : {"device", "pinned", "storage"}) {
      EXPECT_LE(row.at("bytes").at(tier), fullest->at("peak_bytes").at(tier));
    }
  }
  if (!event.contains("pipeline")) return;
  char bubble[64];
  std::snprintf(bubble, sizeof bubble, "bubble %s, %.1f%%",
                format_seconds(event.at("pipeline").at("bubble_s").get<double>()).c_str(),
                100 * event.at("pipeline").at("bubble_share").get<double>());
  EXPECT_TRUE(holds(line_of(text, "pipeline"), bubble)) << text;
}

TEST_F(WorldPlan, TheSummaryIsThatOfTheJob) {
  Draw draw;
  int planned = 0;
  for (int job = 0; job < SLUICE_WORLD_PLANS; ++job) {
    const Words words = drawn_job(draw);
    SCOPED_TRACE(::testing::PrintToString(words));
    const ChildOutcome outcome = run(Words{"plan", "config.toml", "--json"} + words);
    if (outcome.exit_status == 2) continue;  // a mesh that the model does not allow
    const ChildOutcome printed = succeed(Words{"plan", "config.toml"} + words);
    expect_figures_of_the_job(events_of(outcome).at(0), printed.out + printed.err);
    ++planned;
    if (HasFailure()) return;
  }
  EXPECT_GE(2 * planned, SLUICE_WORLD_PLANS);
}

// With equal stages the bubble is (p - 1) / (m + p - 1) of the span, whatever sums and messages take.
TEST_F(WorldPlan, ABubbleIsThatOfTheOrderAndNoStageHasAnEmbeddingAlone) {
  const Json event = events_of(succeed({"plan",
                                        "config.toml",
                                        "--json",
                                        "--hardware",
                                        "dgx-h100",
                                        "--world",
                                        "8",
                                        "--set",
                                        "memory.device=16GiB",
                                        "memory.pinned=16GiB",
                                        "memory.place.optimizer=auto",
                                        "parallel.pipeline=4",
                                        "model.layers=20",
                                        "model.hidden=1024",
                                        "model.heads=8",
                                        "model.vocab=256",
                                        "train.seq=1024",
                                        "train.accumulate=16",
                                        "recompute.policy=none",
                                        "train.precision=bf16"}))
                         .at(0);
  const Json& pipeline = event.at("pipeline");
  EXPECT_NEAR(pipeline.at("bubble_share").get<double>(), 3.0 / (8 + 3), 0.03);
  for (const Json& stage : pipeline.at("stages")) {
    const auto units = stage.at("units").at(1).get<int>() - stage.at("units").at(0).get<int>();
    EXPECT_GE(units, 5);
  }
}

}  // namespace
}  // namespace sluice::testing
