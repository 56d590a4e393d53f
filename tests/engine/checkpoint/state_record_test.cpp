// Records of commits, as the log of a durable run holds them: read back, and read as untrusted.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "engine/checkpoint/durable_recovery.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::checkpoint {
namespace {

CheckpointManifest manifest() {
  CheckpointManifest manifest;
  manifest.step = 17;
  manifest.data_fingerprint = std::string(32, 'b');
  manifest.arithmetic = "host";
  manifest.threads = 2;
  manifest.loss_scale = runtime::LossScaleState{1024, 3, 0, 1};
  manifest.settings = {{"model.layers", "12"}};
  return manifest;
}

const std::string kRun = "00000000000000070000000000000008";  // of state()

SavedState state() {
  SavedState state;
  state.run = {7, 8};
  state.log = "c\"/state-x.log";
  state.log_id = "17-4";
  state.files = {"a/sluice-00000000000000070000000000000008-0.durable",
                 "b\"/sluice-00000000000000070000000000000008-1.durable"};
  state.space_bytes = 1 << 20;
  state.shares = {3, 1};
  state.homes = {
      {StateKind::kWeight, 0, DType::kBF16, 0, 8192, 77, 8192, 5, {1, 2}},
      {StateKind::kMoment2, 3, DType::kBlock8, 8192, 5000, 1ull << 61, 4224, 6, {~0ull, 0}}};
  return state;
}

using Record = std::pair<CheckpointManifest, SavedState>;

Record parse(const std::string& text) {
  Record record;
  parse_state_record(text, "the record", record.first, record.second);
  return record;
}

nlohmann::json record_as_json() {
  return nlohmann::json::parse(format_state_record(manifest(), state()));
}

TEST(StateRecord, RoundTrips) {
  EXPECT_EQ(parse(format_state_record(manifest(), state())), Record(manifest(), state()));
}

// Sums of whole tensors lie at places that earlier versions numbered otherwise, so their records
// are refused and not misread.
TEST(StateRecord, SumsOfWholeTensorsHaveOnePlace) {
  CheckpointManifest of_rule = manifest();
  of_rule.settings["optimizer.name"] = "\"adafactor\"";
  const std::string text = format_state_record(of_rule, state());
  EXPECT_EQ(parse(text), Record(of_rule, state()));
  nlohmann::json record = nlohmann::json::parse(text);
  record["space"].erase("sums_block");
  try {
    parse(record.dump());
    FAIL();
  } catch (const InputError& error) {
    EXPECT_TRUE(testing::holds(error.what(), "sums of whole tensors"));
  }
  // Other rules have no such sums, and their records are as before.
  EXPECT_EQ(record_as_json().dump().find("sums_block"), std::string::npos);
}

// The shard of a rank says where it begins; whole homes are written as before.
TEST(StateRecord, AShardHasItsRange) {
  SavedState shard = state();
  shard.homes[0].first_elem = 3 * 4096;
  shard.ranks = 4;
  const std::string text = format_state_record(manifest(), shard);
  EXPECT_EQ(parse(text), Record(manifest(), shard));
  EXPECT_EQ(shard.homes[0].range(), (schedule::ElemRange{3 * 4096, 4 * 4096}));
  EXPECT_EQ(record_as_json().dump().find("first_elem"), std::string::npos);
  EXPECT_EQ(record_as_json().dump().find("ranks"), std::string::npos);
  nlohmann::json record = nlohmann::json::parse(text);
  record["homes"][0]["first_elem"] = 5;
  EXPECT_TRUE(testing::holds(testing::message_of<InputError>([&] { parse(record.dump()); }),
                             "'first_elem' must be a multiple of 4096"));
}

// A record of an earlier version had no id of its log, and no shares, for its storage was striped
// evenly.
TEST(StateRecord, LaterMembersMayBeMissing) {
  nlohmann::json record = record_as_json();
  record["space"].erase("log_id");
  record["space"].erase("shares");
  SavedState expected = state();
  expected.log_id = "";
  expected.shares = {1, 1};
  EXPECT_EQ(parse(record.dump()), Record(manifest(), expected));
}

TEST(StateRecord, SharesThatAreNoneAreRefused) {
  for (const char* wrong : {"[3]", "[3,0]", "[3,-1]", "[3,1.5]", "7", "{}", "[4096,1]",
                            "[4294967297,1]", "null", "[[3],[1]]"}) {
    nlohmann::json record = record_as_json();
    record["space"]["shares"] = nlohmann::json::parse(wrong);
    EXPECT_THROW(parse(record.dump()), InputError) << wrong;
  }
}

TEST(StateRecord, TakesNoMoreThanItIsGivenRoomFor) {
  SavedState large = state();
  const std::uint64_t most = ~0ull >> 2;
  large.homes.insert(large.homes.end(), 1000,
                     {StateKind::kGradient,
                      1 << 29,
                      DType::kBlock8,
                      most,
                      most,
                      most,
                      1 << 20,
                      ~0u,
                      {~0ull, ~0ull}});
  const std::vector<std::string> paths{"a", "b\"", "c\""};
  EXPECT_LE(format_state_record(manifest(), large).size(),
            runtime::state_record_bytes(large.homes.size(), manifest().settings, paths));
}

// One edit each, and the member that the refusal names.
TEST(StateRecord, ImpossibleValuesAreRefusedByName) {
  struct Edit {
    std::string from, to, named;
  };
  const std::vector<Edit> edits{
      {R"("kind":"weight")", R"("kind":"wait")", "kind"},
      {R"("dtype":"BF16")", R"("dtype":16)", "'dtype'"},
      {R"("unit":3)", R"("unit":-3)", "'unit'"},
      {R"("offset":8192)", R"("offset":1048576)", "outside the files"},
      {R"("bytes":8192)", R"("bytes":4611686018427387905)", "'bytes'"},
      {R"("block_bytes":8192)", R"("block_bytes":0)", "'block_bytes'"},
      {R"("block_bytes":8192)", R"("block_bytes":1)", "'block_bytes'"},
      {R"("version":5)", R"("version":4294967296)", "'version'"},
      {R"("key":77)", R"("key":"77")", "'key'"},
      {R"("run":"0000)", R"("run":"000)", "'run'"},
      {R"("xxh3":"00000000000000020000000000000001")", R"("xxh3":"0000000000000002")", "'xxh3'"},
      {R"("xxh3":"0000)", R"("xxh3":"+000)", "'xxh3'"},
      {R"(["a/sluice-)" + kRun + R"(-0.durable")", R"([7)", "'files'"},
      // Another file than the run's own, however it is put.
      {R"("a/sluice-)" + kRun + R"(-0.durable")", R"("a/../../etc/passwd")", "own files"},
      {R"("a/sluice-)" + kRun + R"(-0.durable")", R"("a/sluice-)" + kRun + R"(-1.durable")",
       "own files"},
      {kRun + "-1.durable", kRun + "-1.durable/..", "own files"},
      {R"("homes":[)", R"("homs":[)", "'homes'"},
      {R"("step":17)", R"("step":"17")", "'step'"}};
  for (const Edit& edit : edits) {
    std::string text = format_state_record(manifest(), state());
    const auto at = text.find(edit.from);
    ASSERT_NE(at, std::string::npos) << edit.from;
    text.replace(at, edit.from.size(), edit.to);
    EXPECT_TRUE(testing::holds(testing::message_of<InputError>([&] { parse(text); }), edit.named));
  }
}

TEST(StateRecord, CutAnywhereIsRefused) {
  const std::string text = format_state_record(manifest(), state());
  for (std::size_t bytes = 0; bytes < text.size(); bytes += 7) {
    EXPECT_THROW(parse(text.substr(0, bytes)), InputError);
  }
}

// Every member, and every list and object, in turn.
std::vector<nlohmann::json::json_pointer> places_in(const nlohmann::json& record) {
  std::vector<nlohmann::json::json_pointer> places;
  const nlohmann::json flat = record.flatten();
  for (const auto& [leaf, value] : flat.items()) {
    for (nlohmann::json::json_pointer at(leaf); !at.empty(); at = at.parent_pointer()) {
      if (std::find(places.begin(), places.end(), at) == places.end()) places.push_back(at);
    }
  }
  return places;
}

TEST(StateRecord, AnyValueOfAMemberRoundTripsOrIsRefused) {
  const nlohmann::json record = record_as_json();
  const nlohmann::json others = nlohmann::json::parse(
      R"([null, true, 0, 1, -1, 0.5, 1e308, 4096, 8192, 4294967295, 4294967296,
          4611686018427387904, 9223372036854775807, 18446744073709551615, 18446744073709551616,
          "", "0", "\u0000", "../x", [], [[]], [null], {}, {"": 0}])");
  int read = 0;
  int refused = 0;
  for (const nlohmann::json::json_pointer& at : places_in(record)) {
    for (const nlohmann::json& other : others) {
      nlohmann::json changed = record;
      changed[at] = other;
      try {
        const Record found = parse(changed.dump());
        EXPECT_EQ(parse(format_state_record(found.first, found.second)), found)
            << at << " = " << other;
        ++read;
      } catch (const InputError& error) {
        EXPECT_TRUE(testing::holds(error.what(), "the record")) << at << " = " << other;
        ++refused;
      }
    }
  }
  EXPECT_GT(read, 50);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace sluice::checkpoint
