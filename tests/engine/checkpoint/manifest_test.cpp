#include "engine/checkpoint/manifest.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.hpp"
#include "base/posix_file.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::checkpoint {
namespace {

CheckpointManifest example() {
  CheckpointManifest manifest;
  manifest.step = 1234567890123;
  manifest.run_id = std::string(32, 'a');
  manifest.data_fingerprint = std::string(32, 'b');
  manifest.arithmetic = "host avx512_bf16 \"oneDNN\" 2.6.3";
  manifest.threads = 2;
  manifest.weights_hash = "0123456789abcdef0123456789abcdef";
  manifest.settings = {{"model.layers", "12"}, {"model.family", "\"gpt2\""}};
  manifest.files = {{"weights.safetensors", 12, std::string(32, '0')},
                    {"state", 0, std::string(32, '1')}};
  return manifest;
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = format_manifest(example());
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& text) {
  return testing::message_of<InputError>([&] { parse_manifest(text, "manifest.json"); });
}

using testing::holds;

CheckpointManifest scaled() {
  CheckpointManifest manifest = example();
  manifest.loss_scale = runtime::LossScaleState{32768, 1999, 1, 3};
  return manifest;
}

// A setting may be as long as a whole configuration.
TEST(Manifest, RoundTrips) {
  CheckpointManifest long_settings = example();
  long_settings.settings["optimizer.groups"] = std::string(std::size_t{1} << 20, '"');
  for (const CheckpointManifest& manifest : {example(), long_settings, scaled()}) {
    EXPECT_EQ(parse_manifest(format_manifest(manifest), "m"), manifest);
  }
}

// Older ones have none.
TEST(Manifest, ARunIdIsOneOrIsNotThere) {
  const std::string line = "  \"run_id\": \"" + std::string(32, 'a') + "\",\n";
  EXPECT_EQ(parse_manifest(replaced(line, ""), "m").run_id, "");
  EXPECT_TRUE(holds(refusal(replaced(line, "  \"run_id\": \"mine\",\n")), "'run_id'"));
}

TEST(Manifest, ALossScaleThatCannotBeIsRefused) {
  const auto refused = [](const std::string& from, const std::string& to) {
    CheckpointManifest manifest = scaled();
    manifest.step = 5000;
    std::string text = format_manifest(manifest);
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return refusal(text.replace(at, from.size(), to));
  };
  for (const char* scale : {"0", "3", "8589934592", "9007199254740992"}) {
    EXPECT_EQ(refused("\"scale\": 32768", std::string("\"scale\": ") + scale),
              "manifest.json: 'loss_scale': 'scale' must be a power of two, at most 2^32");
  }
  const auto expect = [&](const char* from, const char* to, const char* words) {
    EXPECT_TRUE(holds(refused(from, to), words));
  };
  expect("\"scale\": 32768", "\"scale\": 0.5", "'scale'");
  expect("\"good_steps\": 1999", "\"good_steps\": 5001", "'good_steps' is more");
  expect("\"skipped_steps\": 3", "\"skipped_steps\": 5001", "'skipped_steps'");
  expect("\"overflows\": 1", "\"overflows\": 4", "'overflows' is more");
  expect("\"good_steps\"", "\"good\"", "'good_steps' is missing");
}

TEST(Manifest, UnknownMembersArePassedOver) {
  EXPECT_EQ(parse_manifest(replaced("\"threads\"", "\"later\": [1], \"threads\""), "m"), example());
}

TEST(Manifest, WrongMembersAreRefusedByName) {
  EXPECT_EQ(refusal(replaced("\"threads\": 2", "\"threads\": -2")),
            "manifest.json: 'threads' must be a whole number, not negative");
  EXPECT_EQ(refusal(replaced("\"threads\": 2", "\"thread\": 2")),
            "manifest.json: 'threads' is missing");
  EXPECT_EQ(refusal(replaced("\"version\": 3", "\"version\": 2")),
            "manifest.json: 'version' is 2, which an earlier Sluice wrote, without a digest; this "
            "program reads version 3: resume with the program that wrote it, or start anew");
  const std::vector<std::pair<std::string, std::string>> wrong{
      {replaced("\"version\": 3", "\"version\": 4"), "a later Sluice wrote"},
      {replaced("sluice checkpoint", "other"), "'format'"},
      {replaced("0123456789abcdef01", "0123456789ABCDEF01"), "32 hex digits"},
      {replaced("\"12\"", "12"), "'model.layers' must be a string"},
      {replaced("\"state\"", "\"../state\""), "bare file name"},
      {replaced("\"state\"", "\"..\""), "bare file name"},
      {replaced("\"state\"", "\"weights.safetensors\""), "twice"},
      {replaced("\"bytes\": 12", "\"bytes\": 1e30"), "'bytes'"},
      {replaced("\"bytes\": 12", "\"bytes\": 2e777777"), "out of range"},
      {replaced("\"arithmetic\"", "\"step\""), "stands twice"},
      {replaced("\"threads\"", "\"later\": [[[[[[[[1]]]]]]]], \"threads\""), "nested too deeply"},
      {"[]", "must be an object"},
      {"{", "not valid JSON"},
      {"", "not valid JSON"}};
  for (const auto& [text, words] : wrong) EXPECT_TRUE(holds(refusal(text), words));
}

// One bit of each byte, in turn: a flipped manifest is refused, or says the same.
TEST(Manifest, AFlippedBitChangesNothingThatIsRead) {
  const std::string whole = format_manifest_file(scaled());
  EXPECT_EQ(parse_manifest_file(whole, "m"), scaled());
  for (std::size_t bit = 0; bit < 8; ++bit) {
    for (std::size_t byte = 0; byte < whole.size(); ++byte) {
      std::string flipped = whole;
      flipped[byte] = static_cast<char>(flipped[byte] ^ 1 << bit);
      try {
        EXPECT_EQ(parse_manifest_file(flipped, "m"), scaled()) << byte << " " << bit;
      } catch (const InputError&) {
      }
    }
  }
}

TEST(Manifest, AFileWithoutItsDigestOrWithoutFilesIsRefused) {
  const auto refused = [](const std::string& text) {
    return testing::message_of<InputError>([&] { parse_manifest_file(text, "m"); });
  };
  EXPECT_EQ(refused(format_manifest(example())), "m: 'digest' is missing");
  CheckpointManifest manifest = example();
  manifest.files.clear();
  EXPECT_EQ(refused(format_manifest_file(manifest)), "m: 'files' must name the checkpoint's files");
}

TEST(Manifest, IsSavedWhole) {
  const testing::ScratchDirectory scratch;
  const auto path = scratch / "manifest.json";
  save_manifest(example(), path);
  auto second = example();
  second.step = 7;
  save_manifest(second, path);
  EXPECT_EQ(load_manifest(path), second);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  std::filesystem::create_symlink(path, scratch / "link");
  for (const std::string name : {"none", "link"}) {
    EXPECT_TRUE(
        holds(testing::message_of<InputError>([&] { load_manifest(scratch / name); }), name));
  }
}

TEST(Manifest, FilesThatAreNotAsItSaysAreNamed) {
  const testing::ScratchDirectory scratch;
  const auto path = scratch.write("state", std::string(3 << 20, 'x'));
  CheckpointManifest manifest = example();
  manifest.files = {{"state", 3 << 20, hash_file(path)}};
  EXPECT_NO_THROW(verify_files(manifest, scratch.path()));
  const auto refused = [&] {
    return testing::message_of<InputError>([&] { verify_files(manifest, scratch.path()); });
  };
  std::string changed(3 << 20, 'x');
  changed[2500000] = 'y';
  scratch.write("state", changed);
  EXPECT_EQ(refused(), path + " is corrupt: its checksum is not the manifest's");
  scratch.write("state", "x");
  EXPECT_TRUE(holds(refused(), "has 1 bytes; its manifest says 3145728"));
  std::filesystem::remove(path);
  EXPECT_TRUE(holds(refused(), "cannot be read"));
  // The right bytes, but somewhere else.
  scratch.write("elsewhere", std::string(3 << 20, 'x'));
  std::filesystem::create_symlink("elsewhere", path);
  EXPECT_TRUE(holds(refused(), "cannot be read"));
}

}  // namespace
}  // namespace sluice::checkpoint
