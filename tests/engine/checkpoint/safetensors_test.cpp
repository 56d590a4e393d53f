#include "engine/checkpoint/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/error.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"

namespace sluice::checkpoint {
namespace {

std::string file_of(const std::string& json, std::size_t buffer_bytes) {
  const std::uint64_t length = json.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + json + std::string(buffer_bytes, 'x');
}

std::string refusal(const std::string& json, std::uint64_t buffer_bytes) {
  return testing::message_of<InputError>(
      [&] { parse_safetensors_header(json, buffer_bytes, "m"); });
}

using testing::holds;

std::vector<std::byte> bytes_of(std::size_t count, int seed) {
  std::vector<std::byte> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<std::byte>(seed + 31 * i);
  return data;
}

TEST(Safetensors, TensorsWrittenInPiecesReadBack) {
  const testing::ScratchDirectory scratch;
  const auto path = scratch / "model.safetensors";
  const auto a = bytes_of(24, 1);
  const auto b = bytes_of(200, 2);
  {
    SafetensorsWriter writer(path,
                             {{"b", DType::kBF16, {10, 10}},
                              {"none", DType::kF32, {0, 7}},
                              {"a\n\"", DType::kF32, {2, 3}}},
                             {{"format", "pt"}});
    writer.append(2, std::span(a).first(5));
    writer.append(0, std::span(b).first(150));
    writer.append(2, std::span(a).subspan(5));
    writer.append(0, std::span(b).subspan(150));
    writer.finish();
  }
  const SafetensorsReader reader(path);
  ASSERT_EQ(reader.tensors().size(), 3u);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  const auto* found = reader.find("a\n\"");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(found->dtype, DType::kF32);
  std::vector<std::byte> back(24);
  reader.read(*found, 0, back);
  EXPECT_EQ(back, a);
  std::vector<std::byte> piece(50);
  reader.read(*reader.find("b"), 150, piece);
  EXPECT_TRUE(std::equal(piece.begin(), piece.end(), b.begin() + 150));
  EXPECT_EQ(reader.find("none")->bytes(), 0u);
  EXPECT_EQ(reader.find("absent"), nullptr);
  EXPECT_THROW(reader.read(*reader.find("b"), 151, piece), InternalError);
}

TEST(Safetensors, AFileThatWasNotFinishedIsRemoved) {
  const testing::ScratchDirectory scratch;
  const auto path = scratch / "model.safetensors";
  {
    SafetensorsWriter writer(path, {{"a", DType::kF32, {2}}});
    writer.append(0, bytes_of(4, 0));
    EXPECT_THROW(writer.finish(), InternalError);
    EXPECT_THROW(writer.append(0, bytes_of(5, 0)), InternalError);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SafetensorsHeader, AcceptsEveryFormThatTheFormatAllows) {
  const auto header = parse_safetensors_header(
      R"({"__metadata__":{"k":"v"},"z":{"dtype":"U8","shape":[],"data_offsets":[4,5]},)"
      R"("a":{"shape":[2],"data_offsets":[0,4],"dtype":"BF16"}}   )",
      5, "m");
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_TRUE(header.tensors[1].shape.empty());
  EXPECT_TRUE(parse_safetensors_header("{}", 0, "m").tensors.empty());
}

TEST(SafetensorsHeader, HolesOverlapsAndExtraBytesAreRefused) {
  const auto two = [](const char* first, const char* second) {
    return std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  EXPECT_NO_THROW(parse_safetensors_header(two("[0,4]", "[4,8]"), 8, "m"));
  EXPECT_TRUE(holds(refusal(two("[0,4]", "[5,9]"), 9), "'b' follows a hole"));
  EXPECT_TRUE(holds(refusal(two("[0,4]", "[3,7]"), 8), "'b' overlaps"));
  EXPECT_TRUE(holds(refusal(two("[0,4]", "[0,4]"), 8), "overlaps"));
  EXPECT_TRUE(holds(refusal(two("[1,5]", "[5,9]"), 9), "'a' follows a hole"));
  EXPECT_TRUE(holds(refusal(two("[0,4]", "[4,8]"), 9), "cover 8 bytes"));
  EXPECT_TRUE(holds(refusal(two("[0,4]", "[4,8]"), 7), "of a buffer of 7 bytes"));
  EXPECT_TRUE(holds(refusal(two("[4,0]", "[4,8]"), 8), "'a' lies at bytes 4 to 0"));
  EXPECT_TRUE(holds(refusal(two("[0,5]", "[5,9]"), 9), "need 4"));
}

TEST(SafetensorsHeader, WrongMembersAreRefusedByName) {
  const auto tensor = [](const std::string& members) { return "{\"w\":{" + members + "}}"; };
  const std::string rest = R"("shape":[1],"data_offsets":[0,1])";
  const std::vector<std::pair<std::string, std::string>> cases{
      {tensor(rest), "'w' has no dtype"},
      {tensor(R"("dtype":"U8","data_offsets":[0,1])"), "'w' has no shape"},
      {tensor(R"("dtype":"U8","shape":[1])"), "'w' has no data_offsets"},
      {tensor(R"("dtype":"Q3",)" + rest), "unknown dtype 'Q3'"},
      {tensor(R"("dtype":"U8","dtype":"U8",)" + rest), "'dtype' twice"},
      {tensor(R"("dtype":"U8","extra":1,)" + rest), "unknown key 'extra'"},
      {tensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"),
       "a negative number in its shape"},
      {tensor(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])"), "a fraction in its shape"},
      {tensor(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])"), "a list in its shape"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), "lacks two data_offsets"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), "more than two"},
      {tensor(R"("dtype":"U8","shape":[4294967296,4294967296,2],"data_offsets":[0,1])"),
       "too large"},
      {tensor(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1])"), "above 2^63"},
      {tensor(R"("dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1])"), "a fraction"},
      {R"({"w":3})", "'w' must be an object, not a number"},
      {R"({"w":[]})", "'w' must be an object, not a list"},
      {R"({"w":{},"w":{}})", "'w' has no dtype"},
      {R"({"__metadata__":{"a":1}})", "__metadata__ 'a' must be a string"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "'a' twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "'__metadata__' stands twice"},
      {R"( {})", "must start with '{'"},
      {R"([])", "must start with '{'"},
      {R"({"a":)", "not valid JSON"},
      {R"({}{})", "not valid JSON"},
  };
  for (const auto& [json, words] : cases) {
    EXPECT_TRUE(holds(refusal(json, 1), words)) << json;
  }
  const std::string w = tensor(R"("dtype":"U8",)" + rest);
  EXPECT_TRUE(holds(refusal(w.substr(0, w.size() - 1) + "," + w.substr(1), 1), "'w' stands twice"));
}

TEST(Safetensors, TruncatedFilesAreRefused) {
  const testing::ScratchDirectory scratch;
  const std::string whole =
      file_of(R"({"w":{"dtype":"U8","shape":[100],"data_offsets":[0,100]}})", 100);
  EXPECT_NO_THROW(SafetensorsReader(scratch.write("m", whole)));
  const auto refused = [](const std::string& path) {
    return testing::message_of<InputError>([&] { SafetensorsReader{path}; });
  };
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 3) {
    const auto path = scratch.write("m", whole.substr(0, bytes));
    EXPECT_TRUE(holds(refused(path), path));
  }
  std::string huge = whole;
  huge[6] = '\x7f';  // a header length of 2^54
  EXPECT_TRUE(holds(refused(scratch.write("m", huge)), "header"));
  EXPECT_TRUE(holds(refused(scratch / "none"), "none"));
}

}  // namespace
}  // namespace sluice::checkpoint
