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

std::string of(const char* key, std::uint64_t value) {
  return std::string(key) + "=" + std::to_string(value);
}

// A schedule of several steps: of a pipeline or of a server.
Words drawn_delay(Draw& draw, std::uint64_t pipeline, std::uint64_t data) {
  const bool of_pipeline = pipeline > 1;
  const bool rotates = !of_pipeline && draw.below(2) == 0;
  const std::uint64_t updates = (rotates ? data : 1) * (1 + draw.below(5));
  Words settings{"train.clip=0", "model.tie_embeddings=false", of("parallel.updates", updates),
                 of("train.steps", 2 * updates)};
  if (of_pipeline) {
    const bool is_buffered = draw.below(3) == 0;
    return settings +
           Words{of("train.accumulate", data * (is_buffered ? pipeline : 1 + draw.below(3))),
                 is_buffered ? "parallel.schedule=2bw"
                             : draw.pick({"parallel.schedule=pipedream",
                                          "parallel.schedule=pipedream-vsync"})};
  }
  settings = settings + Words{"parallel.server=true", "parallel.zero=0"};
  if (rotates) return settings + Words{"parallel.server_mode=rotating"};
  return settings + Words{"parallel.server_mode=asp", "train.accumulate=1"};
}

// A job on paper: several data-parallel ranks, stages, or both, with tensor groups or without. Of
// five jobs two have delayed updates.
Words drawn_job(Draw& draw) {
  const bool is_delayed = draw.below(5) < 2;
  const std::uint64_t pipeline = draw.pick<std::uint64_t>({1, 2, 3, 4, 8});
  const std::uint64_t data = pipeline == 1 ? 2 + draw.below(6) : 1 + draw.below(4);
  const std::uint64_t tensor = is_delayed ? 1 : draw.pick<std::uint64_t>({1, 1, 2, 4});
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
  if (is_delayed) {
    settings = settings + drawn_delay(draw, pipeline, data);
  } else if (pipeline > 1) {
    settings.emplace_back(draw.pick({"parallel.schedule=1f1b", "parallel.schedule=gpipe",
                                     "parallel.schedule=zb-h1", "parallel.schedule=interleaved"}));
  }
  if (settings.back() == "parallel.schedule=interleaved") {
    settings.emplace_back("parallel.virtual_stages=2");
  }
  const Words hardware{"--hardware", draw.pick({"dgx-a100", "dgx-h100"})};
  if (is_delayed) return hardware + Words{"--set", of("parallel.data", data)} + settings;
  return hardware + Words{"--world", std::to_string(data * pipeline * tensor), "--set"} + settings;
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

// "rank 3" or "ranks 96-127", after the stages.
std::string ranks_text(const Json& of_class) {
  const auto rank = of_class.at("rank").get<int>();
  return of_class.at("alike") == 1 ? "rank " + std::to_string(rank)
                                   : "ranks " + std::to_string(rank) + "-";
}

// Each rank has its share of the pipeline's bubble, and the line of the slowest rank the same as
// its shares of the step.
void expect_one_bubble(const Json& event, const std::string& text) {
  const double bubble_s = event.at("pipeline").at("bubble_s").get<double>();
  char bubble[64] = "; no bubble";
  if (bubble_s > 0) {
    std::snprintf(bubble, sizeof bubble, "bubble %s, %.1f%%", format_seconds(bubble_s).c_str(),
                  100 * event.at("pipeline").at("bubble_share").get<double>());
  }
  EXPECT_TRUE(holds(line_of(text, "pipeline"), bubble)) << text;
  const Json& slowest = event.at("job").at("slowest");
  for (const Json& rank : event.at("per_rank")) {
    const double share_s = rank.at("bubble_s").get<double>();
    EXPECT_LE(share_s, bubble_s * (1 + 1e-9));
    if (rank.at("rank") != slowest.at("rank")) continue;
    EXPECT_DOUBLE_EQ(share_s, slowest.at("shares_s").value("bubble", 0.0));
    const std::string line = line_of(text, "rank " + std::to_string(rank.at("rank").get<int>()));
    EXPECT_TRUE(line.ends_with(share_s > 0 ? ", bubble " + format_seconds(share_s) : ", no bubble"))
        << text;
  }
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
  EXPECT_FALSE(holds(text, "bubble 0.00")) << text;
  const auto whose = [](const Json& ranks) {
    return ranks.at("alike") == 1 ? " of this rank)" : " of these ranks)";
  };
  EXPECT_TRUE(holds(line_of(text, "fullest"), ranks_text(*fullest))) << text;
  EXPECT_TRUE(holds(line_of(text, "fullest"), std::string("(memory") + whose(*fullest))) << text;
  EXPECT_TRUE(holds(line_of(text, "slowest"), ranks_text(*slowest))) << text;
  EXPECT_TRUE(holds(line_of(text, "slowest"), std::string("(traffic") + whose(*slowest))) << text;
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
  for (const Json& rank : ranks) {
    EXPECT_LE(rank.at("compute_s").get<double>(), step_s * (1 + 1e-9));
    EXPECT_LE(rank.at("end_s").get<double>(), step_s * (1 + 1e-9));
  }
  if (event.contains("pipeline")) expect_one_bubble(event, text);
}

TEST_F(WorldPlan, TheSummaryIsThatOfTheJob) {
  Draw draw;
  int planned = 0, delayed = 0;
  for (int job = 0; job < SLUICE_WORLD_PLANS; ++job) {
    const Words words = drawn_job(draw);
    SCOPED_TRACE(::testing::PrintToString(words));
    const ChildOutcome outcome = run(Words{"plan", "config.toml", "--json"} + words);
    if (outcome.exit_status == 2) continue;  // a mesh that the model does not allow
    const ChildOutcome printed = succeed(Words{"plan", "config.toml"} + words);
    expect_figures_of_the_job(events_of(outcome).at(0), printed.out + printed.err);
    ++planned;
    delayed += holds(::testing::PrintToString(words), "parallel.updates=") ? 1 : 0;
    if (HasFailure()) return;
  }
  EXPECT_GE(2 * planned, SLUICE_WORLD_PLANS);
  EXPECT_GE(4 * delayed, planned);
  RecordProperty("planned", planned);
  RecordProperty("delayed", delayed);
}

// --world counts the ranks of a server's order, too.
TEST_F(WorldPlan, AServersOrderIsPlannedForAnyWorld) {
  const Words job{"plan",
                  "config.toml",
                  "--json",
                  "--set",
                  "parallel.server=true",
                  "parallel.data=2",
                  "train.clip=0",
                  "train.steps=8",
                  "train.accumulate=1",
                  "model.tie_embeddings=false",
                  "memory.place.optimizer=auto",
                  "parallel.server_mode=asp"};
  for (const Words& order : {Words{}, Words{"parallel.updates=4"},
                             Words{"parallel.server_mode=rotating", "train.accumulate=4"}}) {
    SCOPED_TRACE(::testing::PrintToString(order));
    const Json event = events_of(succeed(job + order + Words{"--world", "4"})).at(0);
    const Json same = events_of(succeed(job + order + Words{"parallel.data=4"})).at(0);
    EXPECT_EQ(event.at("ranks"), 4);
    EXPECT_EQ(event.at("step_time_s"), same.at("step_time_s"));
  }
}

// A schedule of more steps takes longer and moves more, but a step does not.
TEST_F(WorldPlan, AStepOfDelayedUpdatesIsAStepInEveryFigure) {
  const Words job{"plan",
                  "config.toml",
                  "--json",
                  "--hardware",
                  "dgx-h100",
                  "--set",
                  "model.family=llama",
                  "model.layers=4",
                  "model.hidden=256",
                  "model.vocab=8192",
                  "model.tie_embeddings=false",
                  "train.clip=0",
                  "train.steps=24",
                  "train.seq=256",
                  "train.precision=bf16",
                  "recompute.policy=none",
                  "memory.pinned=8GiB",
                  "memory.device=8GiB",
                  "memory.place.activation=pinned",
                  "memory.place.optimizer=pinned",
                  "parallel.data=2"};
  for (const Words& order :
       {Words{"parallel.pipeline=2", "parallel.schedule=2bw", "train.batch=8",
              "train.micro_batch=auto", "parallel.zero=2"},
        Words{"parallel.pipeline=2", "parallel.schedule=pipedream", "train.accumulate=2"},
        Words{"parallel.server=true", "parallel.server_mode=rotating", "train.accumulate=2"},
        Words{"parallel.server=true", "parallel.server_mode=asp", "train.accumulate=1"}}) {
    SCOPED_TRACE(::testing::PrintToString(order));
    const auto plan = [&](const char* updates) {
      return events_of(succeed(job + order + Words{updates})).at(0);
    };
    const auto few = numbers_of(plan("parallel.updates=4"));
    const Json event = plan("parallel.updates=12");
    const double step_s = event.at("step_time_s").get<double>();
    for (const auto& [path, value] : numbers_of(event)) {
      EXPECT_LT(value, 1e18) << path << " is a difference below zero";
      if (path.ends_with("/updates") || holds(path, "/batch/")) continue;
      const bool is_time = path.ends_with("_s") || holds(path, "_s/");
      if (is_time && !holds(path, "_per_s")) {
        EXPECT_LE(value, step_s * (1 + 1e-9)) << path;
      } else if (few.contains(path)) {
        EXPECT_LE(value, 1.3 * few.at(path)) << path;
      }
    }
    for (const Json& split : event.at("batch").value("tried", Json::array())) {
      if (split.at("micro_batch") != event.at("batch").at("micro_batch")) continue;
      EXPECT_EQ(split.at("step_time_s"), step_s);
    }
  }
}

// As those of a run that sluice launch starts here.
TEST_F(WorldPlan, RanksOnThisMachineShareItsMemory) {
  const auto device_bytes = [&](const char* ranks) {
    const std::string out = succeed({"plan", "config.toml", "--set", "memory.device=auto",
                                     "memory.pinned=auto", "train.accumulate=4", ranks})
                                .out;
    const std::string start = "budgets     device ";
    const std::size_t at = out.find(start) + start.size();
    return static_cast<double>(parse_bytes(out.substr(at, out.find(',', at) - at)).value_or(0));
  };
  EXPECT_NEAR(4 * device_bytes("parallel.data=4") / device_bytes("parallel.data=1"), 1, 0.3);
}

// Lists, lanes and simulations of one rank say so.
TEST_F(WorldPlan, FiguresOfOneRankNameIt) {
  const Words job{"plan",
                  "config.toml",
                  "--explain",
                  "--free-optimizer",
                  "--set",
                  "model.layers=4",
                  "train.clip=0",
                  "train.steps=8",
                  "train.accumulate=4",
                  "model.tie_embeddings=false"};
  const std::string alone = succeed(job).out;
  EXPECT_TRUE(holds(alone, " instructions\n")) << alone;
  EXPECT_TRUE(holds(alone, "lanes at work: ")) << alone;
  EXPECT_FALSE(holds(alone, "rank 0")) << alone;
  const std::string staged = succeed(job + Words{"parallel.pipeline=2"}).out;
  EXPECT_TRUE(holds(staged, " instructions of rank 0\n")) << staged;
  EXPECT_TRUE(holds(staged, "lanes of rank 0 at work: ")) << staged;
  EXPECT_TRUE(holds(staged, "takes no time (rank 0 simulated alone)\n")) << staged;
  const std::string delayed =
      succeed(job + Words{"parallel.pipeline=2", "parallel.schedule=2bw", "parallel.updates=4"})
          .out;
  EXPECT_TRUE(holds(delayed, " instructions of rank 0 for 4 steps\n")) << delayed;
}

// With equal stages the bubble is (p - 1) / (m + p - 1) of the span, whatever sums and messages
// take.
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
