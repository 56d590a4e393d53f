// Schedules as text: JSON there and back, hostile JSON, and torch's CSV.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/rng.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/pipeline_example.hpp"
#include "tests/support/rank_world.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::schedule {
namespace {

Schedule example(std::uint64_t seed) {
  StepModel model = testing::example_model(1, true, DType::kBF16);
  testing::cut_saved(model);
  StepOptions options = testing::random_options(model, 2, seed);
  if (seed == 2) options.recompute = recompute_parts(model, MadeBy::kAttention);
  if (seed % 4 == 3) options.update = UpdatePlacement::kSpeculative;
  return compile(model, options, StepKind::kTraining);
}

std::string refusal(const std::string& text) {
  try {
    schedule_from_json(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ScheduleJson, ComesBackTheSame) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Schedule schedule = example(seed);
    schedule.instructions[2].cost_s = 0.1;
    schedule.instructions[3].guard = Guard::kClipAccepted;
    const std::string text = schedule_to_json(schedule);
    const Schedule back = schedule_from_json(text);
    EXPECT_EQ(schedule_to_json(back), text);
    EXPECT_EQ(back.instructions[2].cost_s, 0.1);
    EXPECT_EQ(back.peak_bytes, schedule.peak_bytes);
    EXPECT_EQ(back.saved_parts, schedule.saved_parts);
    EXPECT_EQ(schedule.saved_parts.empty(), seed != 2 && text.find("Recompute") == text.npos);
    EXPECT_EQ(validate(back), validate(schedule));
  }
  const Schedule pipeline = testing::two_stage_pipeline(2);
  EXPECT_EQ(schedule_to_json(schedule_from_json(schedule_to_json(pipeline))),
            schedule_to_json(pipeline));
}

TEST(ScheduleJson, KeepsTheGroupsAndPeersOfAWorldAndOfARanksOwnList) {
  const StepModel model = testing::example_model(1, true, DType::kBF16);
  const StepOptions options = testing::random_options(model, 3, 1);
  const auto lists = testing::lists_of_ranks(model, options, StepKind::kTraining, 3, 3);
  for (const Schedule& schedule : {lists[2], merge(lists)}) {
    const std::string text = schedule_to_json(schedule);
    const Schedule back = schedule_from_json(text);
    EXPECT_EQ(schedule_to_json(back), text);
    EXPECT_EQ(back.groups, schedule.groups);
    EXPECT_EQ(back.first_rank, schedule.first_rank);
    EXPECT_EQ(world_ranks_of(back), 3);
    EXPECT_EQ(message_bytes(back, 0), message_bytes(schedule, 0));
    EXPECT_GT(message_bytes(back, 0)[static_cast<std::size_t>(Lane::kComm)].sent, 0u);
  }
}

TEST(ScheduleJson, RefusalsNameThePlaceOfTheError) {
  const nlohmann::json good = nlohmann::json::parse(schedule_to_json(example(1)));
  const auto with = [&](const std::string& pointer, const nlohmann::json& value) {
    nlohmann::json document = good;
    document[nlohmann::json::json_pointer(pointer)] = value;
    return refusal(document.dump());
  };
  EXPECT_EQ(refusal(good.dump()), "accepted");
  EXPECT_EQ(with("/version", 2), "schedule: document: \"version\" must be 1");
  EXPECT_EQ(with("/ranks", 0),
            "schedule: document: \"ranks\" must be a whole number from 1 to 1048576");
  EXPECT_EQ(with("/instructions/5/op", "Froward"),
            "schedule: instruction 5: \"op\" knows no \"Froward\"");
  EXPECT_EQ(with("/instructions/5/deps", {5}), "schedule: instruction 5: \"deps\" must be below 5");
  EXPECT_EQ(with("/instructions/5/reads", {{1, 2}}),
            "schedule: instruction 5: \"reads\" holds [buffer], [buffer, offset, bytes] or "
            "[buffer, offset, bytes, peer]");
  EXPECT_EQ(with("/instructions/5/reads", {{1, 0, 0, 1}}),
            "schedule: instruction 5: \"reads\" must be below 1");
  EXPECT_EQ(with("/instructions/5/group", 0),
            "schedule: instruction 5: \"group\" must be a whole number from -1 to -1");
  EXPECT_EQ(with("/first_rank", 1),
            "schedule: document: \"first_rank\" and \"ranks\" must lie within \"world_ranks\"");
  const nlohmann::json outside{{"ranks", {0, 1}}, {"dimension", "data"}};
  EXPECT_EQ(with("/groups", nlohmann::json::array({outside})),
            "schedule: group 0: \"ranks\" must be below 1");
  const nlohmann::json twice{{"ranks", {0, 0}}, {"dimension", "data"}};
  EXPECT_EQ(with("/groups", nlohmann::json::array({twice})),
            "schedule: group 0: \"ranks\" must be ascending ranks");
  const nlohmann::json unknown{{"ranks", {0}}, {"dimension", "time"}};
  EXPECT_EQ(with("/groups", nlohmann::json::array({unknown})),
            "schedule: group 0: \"dimension\" knows no \"time\"");
  EXPECT_EQ(with("/instructions/5/colour", 1),
            "schedule: instruction 5: has an unknown key \"colour\"");
  EXPECT_EQ(with("/instructions/5/cost_s", -1),
            "schedule: instruction 5: \"cost_s\" must be a number of seconds, 0 or more");
  EXPECT_EQ(with("/buffers/0/bytes", -1).substr(0, 46),
            "schedule: buffer 0: \"bytes\" must be a whole nu");
  EXPECT_EQ(with("/buffers/0/rank", 1),
            "schedule: buffer 0: \"rank\" must be a whole number from 0 to 0");
  EXPECT_EQ(with("/buffers/0/unit", 1ll << 40).substr(0, 37),
            "schedule: buffer 0: \"unit\" must be a ");
  EXPECT_EQ(with("/buffers/0", nullptr), "schedule: buffer 0: must be an object");
  EXPECT_EQ(with("/entry/0/home", 1u << 30).substr(0, 39),
            "schedule: entry 0: \"home\" must be below");
  EXPECT_EQ(refusal("{"), "schedule: not JSON at byte 2");
  EXPECT_EQ(refusal("[]"), "schedule: document: must be an object");
  EXPECT_EQ(refusal("{\"ranks\":1e999}"), "schedule: holds a number out of range");
  EXPECT_NE(refusal(std::string(100000, '[')), "accepted");
}

// Damaged bytes are refused or read, never a crash; a schedule that was read can be validated.
TEST(ScheduleJson, SurvivesDamagedText) {
  const std::string good = schedule_to_json(example(2));
  const CounterRng random(5, stream_of("test/json"));
  std::uint64_t draw = 0;
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string text = good;
    const std::uint64_t hits = 1 + random.below(draw++, 3);
    for (std::uint64_t hit = 0; hit < hits; ++hit) {
      const std::size_t at = random.below(draw++, text.size());
      switch (random.below(draw++, 3)) {
        case 0:
          text[at] = static_cast<char>(random.below(draw++, 256));
          break;
        case 1:
          text[at] = "0123456789-[]{},:\""[random.below(draw++, 18)];
          break;
        default:
          text.erase(at, 1 + random.below(draw++, 20));
      }
    }
    try {
      const Schedule schedule = schedule_from_json(text);
      validate(schedule);
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 200);
}

TEST(ScheduleCsv, HasARowPerRankInComputeOrder) {
  EXPECT_EQ(schedule_to_csv(testing::two_stage_pipeline(2)),
            "0F0,0F1,0W0,0W1\n1F0,1F1,1I0,1W0,1I1,1W1\n");
}

}  // namespace
}  // namespace sluice::schedule
